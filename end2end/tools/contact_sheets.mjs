// Takes pictures of all screens (end2end/tests/screens.mjs) at three widths, light and dark, and puts them on one
// contact sheet for each theme: target/screens/sheet-light.png and sheet-dark.png. DIST names the programs.
// BOARDS=1000 takes the pages with boards and jobs of a portal with 1,000 boards and 100,000 jobs, in
// target/screens-1000. BERTH_LARGE names the built example `large`; without it that is built here.
// usage: contact_sheets.mjs
import { execFileSync, spawn } from 'node:child_process';
import { mkdirSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { launchBrowser, openPage, ROOT, settled } from '../tests/harness.mjs';
import { BOARDS, PAGES, startFilledPortal, visit } from './large_portal.mjs';

const isLarge = Number(process.env.BOARDS || 3) === BOARDS;
const SHOTS = join(ROOT, isLarge ? `target/screens-${BOARDS}` : 'target/screens');
const WIDTHS = [1440, 1024, 390];
const THEMES = ['light', 'dark'];
const HEIGHTS = { 1440: 900, 1024: 768, 390: 844 };
/** The width of a picture on the sheet in pixels: the heights of all pictures are equal. */
const SHOWN = { 1440: 320, 1024: 228, 390: 87 };

/** Takes the pictures; resolves to the exit code of the tests, which also check the screens. */
function takePictures() {
  const argv = [join(ROOT, 'end2end/tools/browser-tests.mjs'), join(ROOT, 'end2end/tests/screens.mjs')];
  const env = { ...process.env, BERTH_SCREEN_WIDTHS: WIDTHS.join(','), BERTH_SCREEN_PICTURES: '1' };
  const tests = spawn(process.execPath, argv, { env, stdio: 'inherit' });
  return new Promise((done) => tests.on('close', (code) => done(code ?? 1)));
}

/** The pages of a filled portal whose size depends on boards, nodes and jobs. */
const largePages = ({ running }) => [
  ...PAGES,
  { name: 'launch', role: 'tenant', path: '/launch' },
  { name: 'job-running', role: 'tenant', path: `/jobs/${running}` },
  { name: 'cluster-use', role: 'tenant', path: '/cluster?colour=use' },
  { name: 'cluster-table', role: 'tenant', path: '/cluster?view=table' },
  { name: 'usage', role: 'tenant', path: '/usage' },
  { name: 'fleet', role: 'operator', path: '/operator/fleet' },
  { name: 'stuck', role: 'operator', path: '/operator/stuck' },
  { name: 'operator-reservations', role: 'operator', path: '/operator/reservations' },
  { name: 'orgs', role: 'operator', path: '/operator/orgs' },
];

/** The built example `large`. */
function largeProgram() {
  if (process.env.BERTH_LARGE) return process.env.BERTH_LARGE;
  execFileSync('cargo', ['build', '--quiet', '-p', 'berth-server', '--example', 'large'], { cwd: ROOT, stdio: 'inherit' });
  return join(ROOT, 'target/debug/examples/large');
}

/** Takes the pictures of a filled portal; resolves to 1 if something went wrong in a page. */
async function takeLargePictures() {
  const portal = await startFilledPortal(largeProgram());
  const browser = await launchBrowser();
  let code = 0;
  try {
    for (const one of largePages(portal)) {
      const { path, headers } = visit(portal, one);
      for (const width of WIDTHS) {
        for (const colorScheme of THEMES) {
          const viewport = { width, height: HEIGHTS[width] };
          const { page, faults, close } = await openPage(browser, portal.url, { headers, viewport, colorScheme });
          await page.goto(path);
          await settled(page);
          await page.screenshot({ path: join(SHOTS, `${one.name}-${width}-${colorScheme}.png`), fullPage: true });
          await close();
          if (faults.length) code = 1;
          for (const fault of faults) console.error(`${one.name} at ${width} px, ${colorScheme}: ${fault}`);
        }
      }
    }
  } finally {
    await browser.close();
    await portal.stop();
  }
  return code;
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
const code = await (isLarge ? takeLargePictures() : takePictures());
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
