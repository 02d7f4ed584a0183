// The keyboard alone: sign in, launch a job, find why it waits, and cancel it. At each step a line shows the focus, and
// after a dialog the focus is still in the page.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import {
  bearer, inOrg, jobIn, launchBrowser, openPage, settled, signUp, startDemo, waitFor,
} from './harness.mjs';

/** More presses than any page has stops. */
const MOST_PRESSES = 250;

let demo, browser, operator, person, node, view, page;

before(async () => {
  demo = await startDemo();
  browser = await launchBrowser();
  operator = bearer(demo.url, demo.operator.token);
  person = await signUp(demo.url, 'Signal Mast');
  await operator('POST', `/operator/orgs/${person.org}/credits`, { amount_micros: 50_000_000, memo: 'Welcome' });
  [node] = (await operator('GET', '/operator/nodes')).items;
  view = await openPage(browser, demo.url, { viewport: { width: 1440, height: 900 } });
  page = view.page;
});
after(async () => {
  await browser?.close();
  await demo?.stop();
});

/** The element with the focus: its name, and whether a line shows it; null without one. */
const focus = () => page.evaluate(() => {
  const one = document.activeElement;
  if (!one || one === document.body || one === document.documentElement) return null;
  // A radio button below its label has the line around the label.
  const lines = [one, one.closest('label')].filter(Boolean).map((element) => getComputedStyle(element));
  const isShown = lines.some(({ outlineStyle, outlineWidth }) => outlineStyle !== 'none' && parseFloat(outlineWidth) > 0);
  return { name: `${one.localName}#${one.id} ${one.innerText?.slice(0, 30) ?? ''}`, isShown };
});

const isFocused = (locator) => locator.evaluate((element) => element === document.activeElement);

/** Presses Tab until an element has the focus. Beyond the last stop of a page it goes through the browser once. */
async function tabTo(locator) {
  await locator.waitFor();
  let outside = 0;
  for (let press = 0; press < MOST_PRESSES; press += 1) {
    await page.keyboard.press('Tab');
    const now = await focus();
    if (now === null) {
      outside += 1;
      assert.ok(outside <= 1, 'the focus is lost');
      continue;
    }
    assert.ok(now.isShown, `no line around ${now.name}`);
    if (await isFocused(locator)) return;
  }
  assert.fail(`no way by Tab to ${locator}`);
}

/** Goes to an element and presses a key. */
async function press(locator, key) {
  await tabTo(locator);
  await page.keyboard.press(key);
}

/** Goes to a field and types. */
async function type(locator, text) {
  await tabTo(locator);
  await page.keyboard.type(text);
}

const textbox = (name) => page.getByRole('textbox', { name, exact: true });
const button = (where, name) => where.getByRole('button', { name, exact: true }).and(page.locator(':enabled'));
const railLink = (name) => page.getByRole('navigation', { name: 'Main' }).getByRole('link', { name, exact: true });

test('signing in', async () => {
  await page.goto('/sign-in');
  await button(page, 'Sign in').waitFor();
  await type(textbox('E-mail'), person.email);
  await type(page.getByLabel('Password', { exact: true }), person.password);
  await page.keyboard.press('Enter');
  await page.waitForURL((url) => url.pathname === inOrg(person.slug));
  await settled(page);
});

test('launching a job, finding why it waits, and cancelling it', async () => {
  // Nothing starts on a cordoned node.
  await operator('PATCH', `/operator/nodes/${node.id}`, { cordoned: true });
  try {
    await press(railLink('Launch'), 'Enter');
    await page.waitForURL(/\/launch$/);
    await settled(page);
    await button(page, 'Launch job').waitFor();
    await type(textbox('Name'), 'by-keyboard');
    // The arrow chooses the next of the two.
    await tabTo(page.getByRole('radio', { name: 'Command', exact: true }));
    await page.keyboard.press('ArrowRight');
    assert.ok(await isFocused(page.getByRole('radio', { name: 'Script', exact: true })));
    await type(textbox('Script'), 'sleep 600');
    await press(button(page, 'Launch job'), 'Enter');
    await page.waitForURL(/\/jobs\/job_/);
    await settled(page);
    const [job] = /job_[0-9a-z]+/.exec(page.url());

    await press(railLink('Jobs'), 'Enter');
    await page.waitForURL(/\/jobs$/);
    await settled(page);
    await press(page.getByRole('link', { name: 'by-keyboard', exact: true }), 'Enter');
    await page.waitForURL(new RegExp(`/jobs/${job}$`));
    await settled(page);
    const why = page.getByRole('region', { name: 'Why this job waits' });
    await waitFor('the first reason', async () => {
      const { blockers: [first] } = await person.api('GET', `/orgs/${person.org}/jobs/${job}/explanation`);
      return first && (await why.locator('.why__lead').filter({ hasText: first.detail }).count()) === 1;
    });

    const opener = button(page, 'Cancel job').first();
    await press(opener, 'Space');
    const dialog = page.getByRole('dialog', { name: 'Cancel by-keyboard?' });
    await dialog.waitFor();
    assert.ok(await dialog.evaluate((element) => element.contains(document.activeElement)), 'the focus is in the dialog');
    assert.ok((await focus()).isShown);
    await page.keyboard.press('Escape');
    await dialog.waitFor({ state: 'hidden' });
    assert.ok(await isFocused(opener), 'the focus is back on the button');

    await page.keyboard.press('Space');
    await dialog.waitFor();
    await press(button(dialog, 'Cancel job'), 'Enter');
    await dialog.waitFor({ state: 'hidden' });
    await jobIn(person.api, person.org, job, ['cancelled']);
    await page.locator('.page__head').getByText('cancelled').first().waitFor();
    // The button is gone with the action.
    assert.equal(await opener.count(), 0);
    await page.waitForFunction(() => document.activeElement && document.activeElement !== document.body);
    await page.keyboard.press('Tab');
    assert.ok((await focus())?.isShown, 'the next stop has a line');
  } finally {
    await operator('PATCH', `/operator/nodes/${node.id}`, { cordoned: false });
  }
});

test('nothing went wrong in the browser on the way', () => {
  // The first page without a session is refused once.
  assert.deepEqual(view.faults.filter((fault) => !fault.includes('401')), []);
});
