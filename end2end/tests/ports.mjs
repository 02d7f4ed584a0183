// A port of a running job, in a real browser: opened from the job's page, in a window of its own and under another
// host name, out of reach of the portal.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { bearer, freePort, inOrg, jobIn, launchBrowser, openPage, startDemo, waitFor } from './harness.mjs';

let demo, browser, page, call, org, job, port;

before(async () => {
  demo = await startDemo();
  browser = await launchBrowser();
  call = bearer(demo.url, demo.tenant.token);
  org = demo.tenant.organization;
  port = await freePort();
  ({ page } = await openPage(browser, demo.url, { viewport: { width: 1280, height: 900 } }));
  await page.goto('/sign-in');
  const button = page.getByRole('button', { name: /sign in/i });
  await button.and(page.locator(':enabled')).waitFor();
  await page.getByRole('textbox', { name: 'E-mail', exact: true }).fill(demo.tenant.email);
  await page.getByLabel('Password', { exact: true }).fill(demo.tenant.password);
  await button.click();
  await page.waitForURL((url) => !url.pathname.startsWith('/sign'));
});
after(async () => {
  if (job) await call('POST', `/orgs/${org}/jobs/${job}/cancel`).catch(() => {});
  await browser?.close();
  await demo?.stop();
});

test('the launch form takes ports, and says what is wrong with one', async () => {
  await page.goto(inOrg(demo.tenant.slug, '/launch'));
  const launch = page.getByRole('button', { name: 'Launch job' });
  await launch.and(page.locator(':enabled')).waitFor();
  await page.getByText('Secrets, volumes, ports and labels', { exact: true }).click();
  const ports = page.getByRole('textbox', { name: 'Port number', exact: true });
  const row = (number) => page.getByRole('group', { name: `Port ${number}`, exact: true });
  const add = page.getByRole('button', { name: 'Add port', exact: true });
  // By keyboard only: a new row has the focus.
  await add.focus();
  await page.keyboard.press('Enter');
  await waitFor('the focus in the first row', () => ports.nth(0).evaluate((input) => input === document.activeElement));
  await page.keyboard.type('8888');
  await add.click();
  await ports.nth(1).fill('http');
  await launch.click();
  await row(2).getByText('Port 2: Enter a port number, such as 8888.').waitFor();
  assert.deepEqual(
    [await ports.nth(0).getAttribute('aria-invalid'), await ports.nth(1).getAttribute('aria-invalid')],
    [null, 'true'],
  );
  // The error leaves with its row, and the other row keeps its number.
  await row(2).getByRole('button', { name: 'Remove' }).click();
  await page.getByText('Port 2: Enter a port number, such as 8888.').waitFor({ state: 'detached' });
  assert.equal(await ports.inputValue(), '8888');
  await page.getByText('1 of 8', { exact: true }).waitFor();
  for (let count = 2; count <= 8; count += 1) await add.click();
  await page.getByText('8 of 8', { exact: true }).waitFor();
  assert.equal(await add.isDisabled(), true);
  // The portal judges the range: its error is beside the row too. Empty rows do not count.
  await ports.nth(7).fill('70000');
  await page.getByRole('textbox', { name: 'Name', exact: true }).fill('ports');
  await page.getByRole('textbox', { name: 'Command', exact: true }).fill('true');
  await launch.click();
  await row(8).getByText(/^Port 2: /).waitFor();
  assert.equal(await page.locator('#ports-rows [aria-invalid="true"]').count(), 1);
});

test('a port is opened from the page of the job', async () => {
  const files = { 'site/index.html': '<!DOCTYPE html><title>Inside</title><h1>Served by the job</h1><a href="b/">b</a>', 'site/b/index.html': '<h1>Further in</h1>' };
  const script = `exec python3 -m http.server --directory site --bind 127.0.0.1 ${port}`;
  const spec = { name: 'shows-a-page', offering: 'h100-80gb.1g.10gb', max_duration_s: 600, script, files, ports: [port] };
  job = (await call('POST', `/orgs/${org}/jobs`, spec)).id;
  await jobIn(call, org, job, ['running']);
  await page.goto(inOrg(demo.tenant.slug, `/jobs/${job}`));
  const open = page.getByRole('button', { name: `Open port ${port}` });
  await open.and(page.locator(':enabled')).waitFor();
  const [tab] = await Promise.all([page.context().waitForEvent('page'), open.click()]);
  // It may not listen yet: the page looks again by itself.
  await tab.getByRole('heading', { name: 'Served by the job' }).waitFor({ timeout: 30_000 });
  const at = new URL(tab.url());
  assert.equal(at.hostname, `${job.replace('_', '-')}.localhost`);
  assert.deepEqual([at.pathname, at.hash], [`/${job}/${port}/`, ''], 'no ticket stays in the address');
  await tab.getByRole('link', { name: 'b' }).click();
  await tab.getByRole('heading', { name: 'Further in' }).waitFor();
  // The page is nobody to the portal: it holds no way back to its window, sees no cookie, and cannot ask.
  assert.equal(await tab.evaluate(() => window.opener), null);
  assert.equal(await tab.evaluate(() => document.cookie), '');
  const asked = await tab.evaluate(
    (url) => fetch(`${url}/api/v1/me`, { credentials: 'include' }).then(() => 'answered', () => 'kept out'),
    demo.url,
  );
  assert.equal(asked, 'kept out');
  // Under its host there is nothing of the portal.
  const answer = await tab.goto(new URL('/jobs', at).href);
  assert.equal(answer.status(), 404);
  await tab.getByRole('heading', { name: 'Page not found' }).waitFor();
  await tab.close();
});

test('with the job the port ends, and its page says so', async () => {
  const open = page.getByRole('button', { name: `Open port ${port}` });
  const [tab] = await Promise.all([page.context().waitForEvent('page'), open.click()]);
  await tab.getByRole('heading', { name: 'Served by the job' }).waitFor({ timeout: 30_000 });
  await call('POST', `/orgs/${org}/jobs/${job}/cancel`);
  await page.getByText(`Port ${port} can be opened while the job runs.`).waitFor();
  assert.equal(await open.count(), 0, 'no button that does nothing');
  await tab.reload();
  await tab.getByRole('heading', { name: 'Job not running' }).waitFor();
  await tab.getByRole('link', { name: 'Open the portal' }).click();
  await waitFor('the page of the job', () => new URL(tab.url()).pathname === inOrg(demo.tenant.slug, `/jobs/${job}`));
  job = undefined;
});
