// The start page, the portal's own name and look, the theme, the palette, and pages without JavaScript.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { axeFindings } from './checks.mjs';
import {
  api, bearer, jobIn, launchBrowser, openPage, settled, signIn, signUp, someone, startBarePortal, startDemo,
  waitFor,
} from './harness.mjs';

// A grey image of one pixel.
const PNG = Buffer.from(
  'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR42mNoAAAAggCB2kUIOwAAAABJRU5ErkJggg==', 'base64');

let demo, browser, bare, operator;
before(async () => {
  demo = await startDemo();
  browser = await launchBrowser();
  // Its settings are nobody else's.
  bare = await startBarePortal();
  const person = someone();
  const { name, email, password } = person;
  await api(bare.url, {})('POST', '/setup', { token: bare.token, name, email, password });
  operator = { headers: await signIn(bare.url, person) };
});
after(async () => {
  await browser?.close();
  await bare?.stop();
  await demo?.stop();
});

const path = (page) => new URL(page.url()).pathname;
const awake = (locator) => locator.and(locator.page().locator(':enabled')).first().waitFor();

test('a visitor sees the start page, and signs up from it', async () => {
  const { page, faults, close } = await openPage(browser, bare.url);
  await page.goto('/');
  await page.getByRole('heading', { level: 1, name: 'GPUs for your jobs' }).waitFor();
  assert.equal(await page.getByRole('heading', { name: 'Prices and free boards' }).count(), 0, 'prices are not public');
  await page.getByRole('link', { name: 'Sign up' }).click();
  await page.waitForURL((url) => url.pathname === '/sign-up');
  await page.goBack();
  await page.getByRole('link', { name: 'Sign in' }).click();
  await page.waitForURL((url) => url.pathname === '/sign-in');
  assert.deepEqual(faults.filter((fault) => !fault.includes('401')), []);
  await close();
});

test('an operator sets name, look, logo and public prices, and a visitor sees them', async () => {
  const { page, close } = await openPage(browser, bare.url, { headers: operator.headers });
  await page.goto('/operator/settings');
  const save = page.getByRole('button', { name: 'Save settings' });
  await awake(save);
  await page.getByRole('textbox', { name: 'Name' }).fill('Harbour Compute');
  await page.getByRole('textbox', { name: 'Support e-mail' }).fill('help@example.org');
  const terms = page.getByRole('textbox', { name: 'Terms of use' });
  await terms.fill('http://example.org/terms');
  await page.getByRole('radio', { name: 'teal' }).check({ force: true });
  await page.getByRole('checkbox', { name: /Public prices/ }).check();
  await save.click();
  await page.locator('#terms-url[aria-invalid="true"]').waitFor();
  await terms.fill('https://example.org/terms');
  await save.click();
  await page.getByRole('status').getByText('Saved.').waitFor();
  await page.getByLabel('New logo').setInputFiles({ name: 'logo.svg', mimeType: 'image/png', buffer: Buffer.from('<svg/>') });
  await page.locator('#logo-error').getByText(/PNG/).waitFor();
  await page.getByLabel('New logo').setInputFiles({ name: 'logo.png', mimeType: 'image/png', buffer: PNG });
  await page.getByRole('img', { name: 'Present logo' }).waitFor();
  // The first load of the open page had no logo.
  const rail = page.getByRole('navigation', { name: 'Main' });
  await rail.getByRole('link', { name: 'Gateways', exact: true }).click();
  await page.getByRole('heading', { level: 1, name: 'Gateways' }).waitFor();
  await rail.getByRole('link', { name: 'Portal settings', exact: true }).click();
  await page.getByRole('img', { name: 'Present logo' }).waitFor();
  await page.getByRole('button', { name: 'Remove logo', exact: true }).waitFor();
  await close();

  for (const viewport of [{ width: 1440, height: 900 }, { width: 390, height: 844 }]) {
    const visitor = await openPage(browser, bare.url, { viewport });
    await visitor.page.goto('/');
    await visitor.page.getByRole('heading', { name: 'Prices and free boards' }).waitFor();
    await visitor.page.getByText('Operated by Harbour Compute').waitFor();
    await visitor.page.getByRole('link', { name: 'help@example.org' }).waitFor();
    const link = visitor.page.getByRole('link', { name: 'Terms of use' });
    assert.equal(await link.getAttribute('href'), 'https://example.org/terms');
    assert.equal(await visitor.page.title(), 'Harbour Compute');
    await visitor.page.waitForFunction(() => document.querySelector('.brand__logo')?.naturalWidth === 1);
    assert.equal(await visitor.page.locator('html').getAttribute('data-accent'), 'teal');
    assert.deepEqual(await axeFindings(visitor.page), []);
    await visitor.close();
  }
});

test('the chosen theme is in the first HTML of the next page', async () => {
  const person = await signUp(demo.url);
  const { page, faults, close } = await openPage(browser, demo.url, { headers: person.headers, colorScheme: 'light' });
  await page.goto('/');
  const theme = page.getByLabel('Theme').and(page.locator(':visible'));
  await awake(theme);
  const colour = () => page.evaluate(() => getComputedStyle(document.documentElement).backgroundColor);
  const light = await colour();
  await theme.selectOption('dark');
  await page.waitForFunction(() => document.documentElement.dataset.theme === 'dark');
  const dark = await page.evaluate(async () => {
    await Promise.all(document.getAnimations().map((one) => one.finished));
    return getComputedStyle(document.documentElement).backgroundColor;
  });
  assert.notEqual(dark, light);
  // The colour at the first moment with a body, before any script of the page.
  await page.addInitScript(() => {
    new MutationObserver((_, observer) => {
      if (!document.body) return;
      window.firstTheme = document.documentElement.dataset.theme;
      observer.disconnect();
    }).observe(document, { childList: true, subtree: true });
  });
  const answer = await page.reload();
  assert.match(await answer.text(), /<html[^>]* data-theme="dark"/);
  assert.equal(await page.evaluate(() => window.firstTheme), 'dark');
  await awake(theme);
  assert.equal(await colour(), dark);
  assert.equal(await theme.inputValue(), 'dark');
  await theme.selectOption('system');
  await page.waitForFunction(() => document.documentElement.dataset.theme === undefined);
  // The change of the colour takes a moment.
  await waitFor('the light colour', async () => (await colour()) === light);
  assert.deepEqual(faults, []);
  await close();
});

test('the palette opens a page and a job by the keyboard only', async () => {
  const { organization: org } = demo.tenant;
  const call = bearer(demo.url, demo.tenant.token);
  const name = `palette-${Date.now()}`;
  const body = { name, offering: 'h100-80gb.1g.10gb', command: ['true'], max_duration_s: 60 };
  const job = await call('POST', `/orgs/${org}/jobs`, body);
  await jobIn(call, org, job.id, ['succeeded']);
  const headers = await signIn(demo.url, demo.tenant);
  const { page, faults, close } = await openPage(browser, demo.url, { headers });
  await page.goto('/');
  await awake(page.getByRole('button', { name: 'Go to' }));
  const box = page.getByRole('combobox', { name: 'Page, job, volume or action' });
  const dialog = page.getByRole('dialog', { name: 'Go to' });

  await page.keyboard.press('Control+k');
  await dialog.waitFor();
  assert.ok(await box.evaluate((input) => input === document.activeElement));
  assert.deepEqual(await axeFindings(page), []);
  for (let tabs = 0; tabs < 4; tabs += 1) {
    await page.keyboard.press('Tab');
    const outside = await page.evaluate(() => document.activeElement.closest('.shell') !== null);
    assert.ok(!outside, 'the focus stays in the dialog');
  }
  await page.keyboard.press('Escape');
  await dialog.waitFor({ state: 'hidden' });

  await page.keyboard.press('Control+k');
  await box.waitFor();
  assert.equal(await box.inputValue(), '');
  await page.keyboard.type('limits');
  const first = dialog.getByRole('option').first();
  assert.equal(await first.getAttribute('aria-selected'), 'true');
  assert.equal(await box.getAttribute('aria-activedescendant'), await first.getAttribute('id'));
  await page.keyboard.press('Enter');
  await page.waitForURL((url) => url.pathname.endsWith('/limits'));
  await page.getByRole('heading', { level: 1, name: 'Limits' }).waitFor();

  await page.keyboard.press('Meta+k');
  await box.waitFor();
  await page.keyboard.type(name);
  await page.getByRole('option', { name: new RegExp(name) }).waitFor();
  await page.keyboard.press('ArrowDown');
  await page.keyboard.press('Enter');
  await page.waitForURL((url) => url.pathname.endsWith(`/jobs/${job.id}`));
  await page.getByRole('heading', { level: 1, name }).waitFor();

  const volume = `${name}-files`;
  await call('POST', `/orgs/${org}/volumes`, { name: volume, max_bytes: 1 << 20 });
  await page.keyboard.press('Control+k');
  await box.waitFor();
  await page.keyboard.type(volume);
  await page.getByRole('option', { name: volume }).waitFor();
  await page.keyboard.press('Enter');
  await page.waitForURL((url) => url.pathname.endsWith(`/volumes/${volume}`));
  await page.getByRole('heading', { level: 1, name: volume }).waitFor();
  await call('DELETE', `/orgs/${org}/volumes/${volume}`);

  // A complete id needs none of the loaded jobs.
  const absent = 'job_00000000000000000000000009';
  await page.keyboard.press('Control+k');
  await box.waitFor();
  await box.fill(absent);
  await dialog.getByText('No job with this id.', { exact: true }).waitFor();
  await box.fill(job.id);
  await page.getByRole('option', { name: job.id }).waitFor();
  await page.keyboard.press('Enter');
  await page.waitForURL((url) => url.pathname.endsWith(`/jobs/${job.id}`));

  // A page that arrives behind the open palette takes neither its focus nor its letters.
  let release;
  const released = new Promise((resolve) => { release = resolve; });
  await page.route('**/pkg/**', async (route) => {
    await released;
    return route.continue();
  });
  const rail = page.getByRole('navigation', { name: 'Main' });
  await rail.getByRole('link', { name: 'Secrets', exact: true }).click();
  await page.keyboard.press('Control+k');
  await box.waitFor();
  await page.keyboard.type('lim');
  release();
  await page.waitForURL((url) => url.pathname.endsWith('/secrets'));
  await page.locator('h1', { hasText: 'Secrets' }).waitFor();
  await page.keyboard.type('its');
  assert.equal(await box.inputValue(), 'limits');
  await page.keyboard.press('Enter');
  await page.getByRole('heading', { level: 1, name: 'Limits' }).waitFor();
  // The browser logs the answer 404.
  assert.deepEqual(faults.filter((fault) => !fault.includes(absent)), []);
  await close();
});

test('pages without JavaScript name what does not work', async () => {
  const person = await signUp(demo.url);
  for (const [headers, where] of [[undefined, '/'], [undefined, '/sign-in'], [person.headers, '/jobs']]) {
    const { page, close } = await openPage(browser, demo.url, { headers, javaScriptEnabled: false });
    const answer = await page.goto(where);
    // The browser of the tests does not draw the element, so its HTML is looked at.
    assert.match(await answer.text(), /<noscript><p class="noscript">JavaScript is off\./, where);
    await close();
  }
});

test('the gallery is for operators, and axe finds nothing in it', async () => {
  const headers = await signIn(demo.url, demo.operator);
  const { page, faults, close } = await openPage(browser, demo.url, { headers });
  await page.goto('/operator/gallery');
  await page.getByRole('heading', { level: 1, name: 'Gallery' }).waitFor();
  await page.evaluate(() => document.fonts.ready);
  assert.deepEqual(await axeFindings(page), []);
  // A dialog with a form begins with empty fields at each opening, and Enter in a field submits it.
  await awake(page.getByRole('button', { name: 'Save', exact: true }));
  const opener = page.getByRole('button', { name: 'Disable account', exact: true }).first();
  const dialog = page.getByRole('dialog', { name: 'Disable the account of Ada?' });
  const reason = dialog.getByLabel('Reason');
  await opener.click();
  await reason.fill('Unpaid.');
  await dialog.getByRole('button', { name: 'Keep account enabled' }).click();
  await dialog.waitFor({ state: 'hidden' });
  await opener.click();
  await waitFor('an empty reason', async () => (await reason.inputValue()) === '');
  assert.deepEqual(await axeFindings(page), []);
  await reason.press('Enter');
  await dialog.waitFor({ state: 'hidden' });
  assert.deepEqual(faults, []);
  await close();
  const person = await signUp(demo.url);
  const other = await openPage(browser, demo.url, { headers: person.headers });
  assert.equal((await other.page.goto('/operator/gallery')).status(), 404);
  await settled(other.page);
  assert.equal(path(other.page), '/operator/gallery');
  await other.close();
});
