// A terminal in a running job, in a real browser: opened by hand, typed into, resized, interrupted and ended.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { bearer, inOrg, jobIn, launchBrowser, openPage, startDemo, waitFor } from './harness.mjs';

let demo, browser, view, page, call, org, job;

before(async () => {
  demo = await startDemo();
  browser = await launchBrowser();
  call = bearer(demo.url, demo.tenant.token);
  org = demo.tenant.organization;
  view = await openPage(browser, demo.url, { viewport: { width: 1280, height: 900 } });
  page = view.page;
  // So that a socket can be broken from outside.
  await page.addInitScript(() => {
    const Real = window.WebSocket;
    window.sockets = [];
    window.WebSocket = class extends Real {
      constructor(...args) {
        super(...args);
        window.sockets.push(this);
      }
    };
  });
  const email = page.getByRole('textbox', { name: 'E-mail', exact: true });
  await page.goto('/sign-in');
  const button = page.getByRole('button', { name: /sign in/i });
  await button.and(page.locator(':enabled')).waitFor();
  await email.fill(demo.tenant.email);
  await page.getByLabel('Password', { exact: true }).fill(demo.tenant.password);
  await button.click();
  await page.waitForURL((url) => !url.pathname.startsWith('/sign'));
  const spec = { name: 'for-a-visit', offering: 'h100-80gb.1g.10gb', max_duration_s: 600, script: 'echo up; exec sleep 600' };
  job = (await call('POST', `/orgs/${org}/jobs`, spec)).id;
  await jobIn(call, org, job, ['running']);
});
after(async () => {
  if (job) await call('POST', `/orgs/${org}/jobs/${job}/cancel`).catch(() => {});
  await browser?.close();
  await demo?.stop();
});

const section = () => page.getByRole('region', { name: 'Terminal' });
const rows = async () => (await section().locator('.xterm-rows').innerText()).replaceAll('\u00a0', ' ');
const shows = (text) => waitFor(`${text} on the screen`, async () => (await rows()).includes(text));
const type = async (line) => {
  await page.keyboard.type(line);
  await page.keyboard.press('Enter');
};

test('a shell is opened on the page of the job', async () => {
  await page.goto(inOrg(demo.tenant.slug, `/jobs/${job}`));
  await section().getByText('The audit log records').waitFor();
  const open = section().getByRole('button', { name: 'Open terminal' });
  await open.and(page.locator(':enabled')).click();
  await section().getByText('live', { exact: true }).waitFor();
  // The focus is inside at once. What is looked for is not what is typed.
  await type('echo a$((40 + 2))b');
  await shows('a42b');
  await type('echo in-$BERTH_JOB_ID');
  await shows(`in-${job}`);
});

test('its size follows the window', async () => {
  const columns = async (mark) => {
    await type(`clear; echo ${mark}$(stty size | cut -d' ' -f2)${mark}`);
    const found = () => rows().then((text) => new RegExp(`${mark}(\\d+)${mark}`).exec(text));
    return Number((await waitFor('the size', found))[1]);
  };
  const wide = await columns('w');
  await page.setViewportSize({ width: 390, height: 844 });
  const narrow = await waitFor('fewer columns', async () => {
    const now = await columns('n');
    return now < wide && now;
  });
  assert.ok(narrow >= 20 && narrow < wide, `${narrow} of ${wide}`);
  assert.equal(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), true);
  await page.setViewportSize({ width: 1280, height: 900 });
});

test('a broken connection comes back to the same shell', async () => {
  await type('kept=yes');
  const before = await page.evaluate(() => {
    window.sockets.at(-1).close();
    return window.sockets.length;
  });
  await waitFor('another socket', () => page.evaluate((n) => window.sockets.length > n, before));
  await section().getByText('live', { exact: true }).waitFor();
  await type('echo still-$kept');
  await shows('still-yes');
});

test('the keyboard gets out, and the end is said', async () => {
  await page.keyboard.press('Control+Shift+ArrowUp');
  assert.equal(await page.evaluate(() => document.activeElement?.tagName), 'BUTTON');
  await section().locator('.xterm').click();
  await type('exit 7');
  await section().getByText('Exit code 7.').waitFor();
  await section().getByRole('button', { name: 'Open new terminal' }).waitFor();
  const { items } = await call('GET', `/orgs/${org}/jobs/${job}/terminals`);
  assert.equal(items[0].exit_code, 7);
  const audit = await call('GET', `/orgs/${org}/audit-events`);
  assert.ok(audit.items.some((event) => event.action === 'terminal.closed'));
});

test('without a running job there is none to open', async () => {
  await call('POST', `/orgs/${org}/jobs/${job}/cancel`);
  await jobIn(call, org, job, ['cancelled']);
  await page.goto(inOrg(demo.tenant.slug, `/jobs/${job}`));
  await section().getByText('Available while the job runs.').waitFor();
  assert.equal(await section().getByRole('button', { name: /open/i }).isVisible(), false);
});

test('nothing on the page broke its policy', () => {
  assert.deepEqual(view.faults, []);
});
