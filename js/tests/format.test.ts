import { describe, expect, test } from "vitest";
import { formatBytes, formatChange, formatCount, formatDuration, forPlotly } from "../src/core/format.ts";

const MIB = 2 ** 20;
const GIB = 2 ** 30;

describe("format", () => {
  test.each([
    [7, "7"],
    [1024, "1,024"],
    [1_234_567.4, "1,234,567"],
    [Number.NaN, "n/a"],
  ])("a count of %d reads %s", (count, text) => {
    expect(formatCount(count)).toBe(text);
  });

  test.each([
    [6.99 * GIB, "6.99 GiB"],
    [14 * GIB, "14.0 GiB"],
    [150_754_820_096, "140.4 GiB"],
    [512 * MIB, "512.0 MiB"],
    [999.4 * MIB, "999.4 MiB"],
    [1000 * MIB, "0.98 GiB"],
    [0, "0.00 MiB"],
    [Number.NaN, "n/a"],
  ])("%d bytes read %s", (bytes, text) => {
    expect(formatBytes(bytes)).toBe(text);
  });

  test.each([
    [3.75 * GIB, "+3.75 GiB"],
    [-12.5 * MIB, "\u221212.5 MiB"],
    [3, "±0"],
  ])("a change of %d bytes reads %s", (bytes, text) => {
    expect(formatChange(bytes)).toBe(text);
  });

  test.each([
    [0.004, "4.0 ms"],
    [0.25, "250 ms"],
    [11.6, "11.6 s"],
    [187, "3 min 07 s"],
    [7500, "2 h 05 min"],
  ])("%d seconds read %s", (seconds, text) => {
    expect(formatDuration(seconds)).toBe(text);
  });

  test("nothing that Plotly or MathJax would interpret is left in a label", () => {
    const text = forPlotly('<a href="javascript:x">$\\href{javascript:x}{y}$</a> & <b>');
    expect(text).not.toMatch(/[<>$]/);
    expect(text).toBe(
      '&lt;a href="javascript:x"&gt;&#36;\\href{javascript:x}{y}&#36;&lt;/a&gt; &amp; &lt;b&gt;',
    );
  });
});
