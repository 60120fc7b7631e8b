/* Prepares a picture as Pillow does: the same crop, the same filter, the same rounding. */

const FILTERS = {
  bilinear: { support: 1, at: (x) => Math.max(0, 1 - Math.abs(x)) },
  bicubic: {
    support: 2,
    at: (value) => {
      const x = Math.abs(value);
      if (x < 1) return (1.5 * x - 2.5) * x * x + 1;
      return x < 2 ? ((-0.5 * x + 2.5) * x - 4) * x + 2 : 0;
    },
  },
};
const ONE = 2 ** 22; // weights are fixed-point numbers with 22 bits

/** For every output pixel: where its input begins, and the weights. */
function weights(length, start, end, side, { support, at }) {
  const scale = (end - start) / side;
  const wide = Math.max(scale, 1);
  return Array.from({ length: side }, (_, place) => {
    const centre = start + (place + 0.5) * scale;
    const first = Math.max(0, Math.trunc(centre - support * wide + 0.5));
    const last = Math.min(length, Math.trunc(centre + support * wide + 0.5));
    const raw = Array.from({ length: last - first }, (_, i) => at((i + first - centre + 0.5) / wide));
    const sum = raw.reduce((a, b) => a + b, 0);
    return { first, factors: raw.map((w) => Math.trunc((w / sum) * ONE + (w < 0 ? -0.5 : 0.5))) };
  });
}

const inBytes = (sum) => Math.min(255, Math.max(0, Math.floor((sum + ONE / 2) / ONE)));

/** Planes of bytes (channels, height, width) to (channels, side, side). */
function resampled(planes, width, height, box, side, filter) {
  const across = weights(width, box.left, box.left + box.side, side, filter);
  const down = weights(height, box.top, box.top + box.side, side, filter);
  const top = down[0].first;
  const bottom = Math.max(...down.map(({ first, factors }) => first + factors.length));
  return planes.map((plane) => {
    const rows = new Uint8Array((bottom - top) * side);
    for (let y = top; y < bottom; y += 1) {
      across.forEach(({ first, factors }, x) => {
        let sum = 0;
        for (let i = 0; i < factors.length; i += 1) sum += plane[y * width + first + i] * factors[i];
        rows[(y - top) * side + x] = inBytes(sum);
      });
    }
    const out = new Uint8Array(side * side);
    down.forEach(({ first, factors }, y) => {
      for (let x = 0; x < side; x += 1) {
        let sum = 0;
        for (let i = 0; i < factors.length; i += 1) sum += rows[(first - top + i) * side + x] * factors[i];
        out[y * side + x] = inBytes(sum);
      }
    });
    return out;
  });
}

/** The network's input from the pixels of a canvas (red, green, blue, alpha). */
function prepared({ data, width, height }, { image_size: side, mean, std, crop, interpolation }) {
  const count = width * height;
  const colours = [0, 1, 2].map((channel) => Uint8Array.from({ length: count }, (_, i) => data[4 * i + channel]));
  const [red, green, blue] = colours;
  const grey = () => Uint8Array.from({ length: count }, (_, i) => (red[i] * 19595 + green[i] * 38470 + blue[i] * 7471 + 0x8000) >> 16);
  const cut = crop * Math.min(width, height);
  const box = { left: (width - cut) / 2, top: (height - cut) / 2, side: cut };
  const planes = resampled(mean.length === 1 ? [grey()] : colours, width, height, box, side, FILTERS[interpolation]);
  const input = new Float32Array(mean.length * side * side);
  planes.forEach((plane, channel) => {
    for (let i = 0; i < plane.length; i += 1) input[channel * plane.length + i] = (plane[i] / 255 - mean[channel]) / std[channel];
  });
  return input;
}
