/** Runs a job in an animation frame at most once per pause, however often it is requested. */

export class Pacer {
  private timer: ReturnType<typeof setTimeout> | undefined;
  private frame = 0;
  private lastRun = Number.NEGATIVE_INFINITY;
  private readonly onAbort = () => this.cancel();

  constructor(
    private readonly job: () => void,
    private readonly pause: number,
    private readonly signal: AbortSignal,
  ) {
    signal.addEventListener("abort", this.onAbort);
  }

  /** Requests a run after the pause. */
  request(): void {
    if (this.signal.aborted || this.timer !== undefined || this.frame !== 0) return;
    const wait = this.lastRun + this.pause - performance.now();
    if (wait <= 0) this.nextFrame();
    else this.timer = setTimeout(() => this.nextFrame(), wait);
  }

  /** Requests a run at once, for a person who is waiting. */
  urge(): void {
    if (this.signal.aborted || this.frame !== 0) return;
    this.nextFrame();
  }

  private nextFrame(): void {
    clearTimeout(this.timer);
    this.timer = undefined;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      this.lastRun = performance.now();
      this.job();
    });
  }

  private cancel(): void {
    clearTimeout(this.timer);
    cancelAnimationFrame(this.frame);
    this.timer = undefined;
    this.frame = 0;
  }
}
