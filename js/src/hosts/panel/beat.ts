/** Runs a job some time after its first request, once for all requests until then. */
export class Beat {
  private timer: ReturnType<typeof setTimeout> | undefined;

  constructor(
    private readonly job: () => void,
    private readonly pause: number,
  ) {}

  ask(): void {
    this.timer ??= setTimeout(() => this.now(), this.pause);
  }

  now(): void {
    this.stop();
    this.job();
  }

  stop(): void {
    clearTimeout(this.timer);
    this.timer = undefined;
  }
}
