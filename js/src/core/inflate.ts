/** Decompresses Base64 of gzipped data. */
export async function inflate(text: string): Promise<Uint8Array> {
  const bytes = Uint8Array.from(atob(text.trim()), (letter) => letter.charCodeAt(0));
  const { readable, writable } = new DecompressionStream("gzip");
  const writer = writable.getWriter();
  // An error here is also one of `readable`.
  Promise.all([writer.write(bytes), writer.close()]).catch(() => {});
  return new Uint8Array(await new Response(readable).arrayBuffer());
}
