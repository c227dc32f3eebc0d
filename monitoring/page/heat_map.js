// The heat map: layers down, experts across, each cell's colour its tokens over the mean of its layer. The same colour means the same ratio in every
// layer and at any time. Cells move from one reading to the next where motion is wished for. What the colours say is also said in words.

const full = 2.5;  // times the mean; what is over it has the same colour
const hotAt = 2;
const moveMs = 500;

const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const channels = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
const still = matchMedia('(prefers-reduced-motion: reduce)');
const dark = matchMedia('(prefers-color-scheme: dark)');

export class HeatMap {
  constructor(canvas, imbalance, scale, output) {
    Object.assign(this, {canvas, imbalance, scale, output});
    this.tokens = [];      // by layer and expert
    this.ratios = [];      // tokens over the layer's mean
    this.shown = [];       // what is drawn now, on its way to ratios
    this.cell = null;      // [layer, expert] that is read out
    new ResizeObserver(() => this.draw()).observe(canvas.parentElement);
    dark.addEventListener('change', () => this.draw());
    canvas.addEventListener('pointermove', (event) => this.point(event));
    canvas.addEventListener('pointerdown', (event) => this.point(event));
    canvas.addEventListener('keydown', (event) => this.key(event));
  }

  show(tokens, imbalance) {
    this.tokens = tokens;
    this.imbalances = imbalance;
    this.ratios = tokens.map((row) => {
      const mean = row.reduce((sum, n) => sum + n, 0) / row.length;
      return row.map((n) => (mean > 0 ? n / mean : 0));
    });
    const same = this.shown.length === this.ratios.length && this.shown[0]?.length === this.ratios[0]?.length;
    if (!same || still.matches) {
      this.shown = this.ratios.map((row) => row.slice());
      this.draw();
    } else {
      this.move(this.shown.map((row) => row.slice()), performance.now());
    }
    this.read();
  }

  move(from, began) {
    const run = this.run = {};
    const frame = (now) => {
      if (this.run !== run) return;
      const part = Math.min(1, Math.max(0, (now - began) / moveMs));
      this.shown = this.ratios.map((row, l) => row.map((ratio, e) => from[l][e] + (ratio - from[l][e]) * part));
      this.draw();
      if (part < 1) requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
  }

  // CSS pixels of a cell; rows are as tall as experts are few, within reason.
  sizes() {
    const layers = this.shown.length, experts = this.shown[0]?.length ?? 0;
    const width = this.canvas.clientWidth;
    const cell = experts > 0 ? width / experts : 0;
    return {layers, experts, width, cell, row: Math.max(9, Math.min(26, cell, 420 / Math.max(1, layers)))};
  }

  prepare(canvas, height) {
    const width = canvas.clientWidth, dots = window.devicePixelRatio || 1;
    canvas.style.height = `${height}px`;
    canvas.width = Math.round(width * dots);
    canvas.height = Math.round(height * dots);
    const pen = canvas.getContext('2d');
    pen.setTransform(dots, 0, 0, dots, 0, 0);
    return pen;
  }

  draw() {
    const {layers, experts, cell, row} = this.sizes();
    if (layers === 0 || experts === 0) return;
    const cold = channels(style('--cold')), hot = channels(style('--hot')), edge = style('--edge'), muted = style('--muted');
    const colour = (ratio) => {
      const part = Math.min(1, ratio / full);
      return `rgb(${cold.map((c, i) => Math.round(c + (hot[i] - c) * part)).join(' ')})`;
    };
    const pen = this.prepare(this.canvas, layers * row);
    const gap = cell > 5 ? 1 : 0;
    for (let l = 0; l < layers; ++l) {
      for (let e = 0; e < experts; ++e) {
        pen.fillStyle = colour(this.shown[l][e]);
        pen.fillRect(e * cell, l * row, cell - gap, row - 1);
        if (this.ratios[l][e] > hotAt && cell >= 6) {
          pen.strokeStyle = edge;
          pen.lineWidth = 1.5;
          pen.strokeRect(e * cell + 1, l * row + 1, cell - gap - 2, row - 3);
        }
        if (this.tokens[l][e] === 0 && cell >= 6) {
          pen.strokeStyle = muted;
          pen.lineWidth = 1;
          pen.beginPath();
          pen.moveTo(e * cell + cell / 2 - 3, l * row + row / 2 - 0.5);
          pen.lineTo(e * cell + cell / 2 + 2, l * row + row / 2 - 0.5);
          pen.stroke();
        }
      }
    }
    if (this.cell) {
      pen.strokeStyle = style('--ink');
      pen.lineWidth = 2;
      pen.strokeRect(this.cell[1] * cell + 1, this.cell[0] * row + 1, Math.max(2, cell - gap - 2), row - 3);
    }
    this.drawImbalance(layers, row);
    this.drawScale(colour);
  }

  // A bar a layer: 1 is even, and the scale ends where an expert has `full` times the mean.
  drawImbalance(layers, row) {
    const pen = this.prepare(this.imbalance, layers * row);
    const width = this.imbalance.clientWidth, room = width - 32;
    pen.font = `${Math.min(12, row)}px system-ui, sans-serif`;
    pen.textBaseline = 'middle';
    for (let l = 0; l < layers; ++l) {
      const ratio = this.imbalances?.[l] ?? 0;
      if (ratio <= 0) continue;
      pen.fillStyle = ratio > hotAt ? style('--edge') : style('--accent');
      pen.fillRect(0, l * row + row * 0.25, Math.max(1, room * Math.min(1, Math.max(0, ratio - 1) / (full - 1))), row * 0.45);
      if (row < 9) continue;
      pen.fillStyle = style('--muted');
      pen.fillText(ratio.toFixed(2), room + 5, l * row + row / 2);
    }
    const worst = Math.max(0, ...(this.imbalances ?? []));
    this.imbalance.setAttribute('aria-label', `Imbalance by layer: largest ${worst.toFixed(2)} times the mean`);
  }

  drawScale(colour) {
    const pen = this.scale.getContext('2d');
    for (let x = 0; x < this.scale.width; ++x) {
      pen.fillStyle = colour(full * x / (this.scale.width - 1));
      pen.fillRect(x, 0, 1, this.scale.height);
    }
  }

  point(event) {
    const {layers, experts, cell, row} = this.sizes();
    const box = this.canvas.getBoundingClientRect();
    const at = [Math.floor((event.clientY - box.top) / row), Math.floor((event.clientX - box.left) / cell)];
    if (at[0] < 0 || at[0] >= layers || at[1] < 0 || at[1] >= experts) return;
    this.cell = at;
    this.draw();
    this.read();
  }

  key(event) {
    const step = {ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1]}[event.key];
    const {layers, experts} = this.sizes();
    if (!step || layers === 0 || experts === 0) return;
    event.preventDefault();
    const [l, e] = this.cell ?? [0, -step[1]];
    this.cell = [Math.min(layers - 1, Math.max(0, l + step[0])), Math.min(experts - 1, Math.max(0, e + step[1]))];
    this.draw();
    this.read();
  }

  read() {
    const [l, e] = this.cell ?? [-1, -1];
    if (this.tokens[l]?.[e] === undefined) return;
    const sum = this.tokens[l].reduce((a, b) => a + b, 0);
    const share = sum > 0 ? (100 * this.tokens[l][e] / sum).toFixed(1) : '0';
    const text = `layer ${l}, expert ${e}: ${this.tokens[l][e].toLocaleString('en')} tokens, ${share} %, ${this.ratios[l][e].toFixed(2)} × mean`;
    if (this.output.textContent !== text) this.output.textContent = text;
  }
}
