// Takes pictures of all screens (end2end/tests/screens.mjs) at three widths, light and dark, and puts them on one
// contact sheet for each theme: target/screens/sheet-light.png and sheet-dark.png. DIST names the programs.
// usage: contact_sheets.mjs
import { spawn } from 'node:child_process';
import { mkdirSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { launchBrowser, ROOT } from '../tests/harness.mjs';

const SHOTS = join(ROOT, 'target/screens');
const WIDTHS = [1440, 1024, 390];
const THEMES = ['light', 'dark'];
/** The width of a picture on the sheet in pixels: the heights of all pictures are equal. */
const SHOWN = { 1440: 320, 1024: 228, 390: 87 };

/** Takes the pictures; resolves to the exit code of the tests, which also check the screens. */
function takePictures() {
  const argv = [join(ROOT, 'end2end/tools/browser-tests.mjs'), join(ROOT, 'end2end/tests/screens.mjs')];
  const env = { ...process.env, BERTH_SCREEN_WIDTHS: WIDTHS.join(',') };
  const tests = spawn(process.execPath, argv, { env, stdio: 'inherit' });
  return new Promise((done) => tests.on('close', (code) => done(code ?? 1)));
}

/** The HTML of a sheet: each screen with its pictures side by side. */
function sheet(theme, files) {
  const suffix = `-${WIDTHS[0]}-${theme}.png`;
  const names = files.filter((file) => file.endsWith(suffix)).map((file) => file.slice(0, -suffix.length)).sort();
  const picture = (name, width) => {
    const file = `${name}-${width}-${theme}.png`;
    return files.includes(file) ? `<img src="${file}" alt="" width="${SHOWN[width]}" height="200">` : '';
  };
  const figure = (name) =>
    `<figure><figcaption>${name}</figcaption>${WIDTHS.map((width) => picture(name, width)).join('')}</figure>`;
  return `<!doctype html><meta charset="utf-8"><title>Screens, ${theme}</title><style>
    body { margin: 16px; background: #888; font: 14px system-ui, sans-serif; }
    main { display: grid; grid-template-columns: repeat(2, max-content); gap: 16px; }
    figure { display: grid; grid-template-columns: repeat(3, max-content); gap: 4px 8px; margin: 0; }
    figcaption { grid-column: 1 / -1; }
    img { object-fit: cover; object-position: top left; }
  </style><main>${names.map(figure).join('')}</main>`;
}

mkdirSync(SHOTS, { recursive: true });
// A picture of an earlier run would stand for a screen that no longer exists.
for (const file of readdirSync(SHOTS)) rmSync(join(SHOTS, file), { recursive: true });
const code = await takePictures();
const files = readdirSync(SHOTS);
const browser = await launchBrowser();
try {
  for (const theme of THEMES) {
    const html = join(SHOTS, `sheet-${theme}.html`);
    writeFileSync(html, sheet(theme, files));
    const page = await browser.newPage({ viewport: { width: 1360, height: 900 } });
    await page.goto(pathToFileURL(html).href, { waitUntil: 'load' });
    await page.screenshot({ path: join(SHOTS, `sheet-${theme}.png`), fullPage: true });
    await page.close();
    console.log(join(SHOTS, `sheet-${theme}.png`));
  }
} finally {
  await browser.close();
}
process.exitCode = code;
