// The begin of the launch form: board models as cards, and templates with the way back.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { axeFindings } from './checks.mjs';
import {
  bearer, boardsFree, chooseOffering, ENDED, inOrg, jobIn, launchBrowser, openPage, settled, signUp, startDemo, waitFor,
} from './harness.mjs';

const SLICE = 'h100-80gb.1g.10gb';
const PARTS = '**/pkg/**/split_*.wasm';

let demo, browser, operator, person, view, page, offerings;

before(async () => {
  demo = await startDemo();
  browser = await launchBrowser();
  operator = bearer(demo.url, demo.operator.token);
  person = await signUp(demo.url);
  await operator('POST', `/operator/orgs/${person.org}/credits`, { amount_micros: 20_000_000, memo: 'Welcome' });
  await boardsFree(operator);
  ({ items: offerings } = await person.api('GET', '/offerings?limit=200'));
  view = await openPage(browser, demo.url, { headers: person.headers, viewport: { width: 1440, height: 900 } });
  page = view.page;
});
after(async () => {
  await browser?.close();
  await demo?.stop();
});

const textbox = (name) => page.getByRole('textbox', { name, exact: true });
const button = (name) => page.getByRole('button', { name, exact: true });
const launchButton = (where = page) => where.getByRole('button', { name: 'Launch job' });
const chosen = (name) => page.locator(`input[name="${name}"]:checked`).inputValue();
const sold = (model) => offerings.filter((one) => one.gpu_model === model);
const status = (text) => page.locator('.launch-draft').getByText(text);

async function open(where = page) {
  await where.goto(inOrg(person.slug, '/launch'));
  await settled(where);
  await launchButton(where).and(where.locator(':enabled')).waitFor();
}

test('the form begins with the model of the cheapest free device, and says so', async () => {
  await open();
  const free = offerings.filter((one) => one.price.version > 0 && one.available > 0);
  const cheapest = free.reduce((a, b) => (b.price.per_hour_micros < a.price.per_hour_micros ? b : a));
  assert.equal(await chosen('model'), cheapest.gpu_model);
  assert.equal(await chosen('offering'), cheapest.slug);
  await page.getByText(`${cheapest.slug} is chosen: it has the lowest price of the devices that are free now.`).waitFor();
  const models = new Set(offerings.map((one) => one.gpu_model));
  assert.equal(await page.locator('input[name="model"]').count(), models.size);
  const card = page.locator('.model').filter({ hasText: 'H100-80GB' });
  const { capacity } = offerings.find((one) => one.slug === 'h100-80gb');
  await card.getByText(`${capacity} boards free, or 14 slices of 1g.10gb`, { exact: true }).waitFor();
});

test('cards and offerings are chosen by keyboard', async () => {
  const first = await chosen('model');
  await page.locator('input[name="model"]:checked').focus();
  await page.keyboard.press('ArrowDown');
  await waitFor('another model', async () => (await chosen('model')) !== first);
  const model = await chosen('model');
  const shown = () => page.locator('input[name="offering"]:visible')
    .evaluateAll((inputs) => inputs.map((input) => input.value).sort());
  assert.deepEqual(await shown(), sold(model).map((one) => one.slug).sort());

  await page.keyboard.press('Tab');
  assert.equal(await page.evaluate(() => document.activeElement.name), 'offering');
  const before_ = await chosen('offering');
  await page.keyboard.press('ArrowDown');
  await waitFor('another offering', async () => (await chosen('offering')) !== before_);
  const after_ = await chosen('offering');
  assert.ok(sold(model).some((one) => one.slug === after_), after_);
  assert.equal(await chosen('model'), model);
});

test('a template fills the form, and the earlier input comes back', async () => {
  await chooseOffering(page, SLICE);
  await textbox('Name').fill('typed');
  await textbox('Command').fill('echo typed');
  await button('Training').click();
  await status(/^Filled from the template Training\./).waitFor();
  assert.match(await textbox('Script').inputValue(), /train\.py/);
  assert.equal(await textbox('Name').inputValue(), 'typed', 'a typed name stays');
  assert.equal(await chosen('offering'), SLICE, 'the offering stays');
  // A section with input is open, another one is closed.
  assert.equal(await textbox('Checkpoint directory').inputValue(), 'ckpt');
  assert.equal(await textbox('Retries').inputValue(), '2');
  assert.equal(await textbox('Offline tolerance').isVisible(), false);

  await button('Undo').click();
  await waitFor('the command', async () => (await textbox('Command').isVisible()) && (await textbox('Command').inputValue()) === 'echo typed');
  assert.equal(await textbox('Name').inputValue(), 'typed');
  assert.equal(await button('Undo').count(), 0);

  for (const title of ['Training', 'Notebook']) {
    await button(title).click();
    await status(new RegExp(`^Filled from the template ${title}\\.`)).waitFor();
    assert.equal(await textbox('Name').inputValue(), 'typed', 'a typed name stays after each template');
  }
  // The way back leads past both templates.
  await button('Undo').click();
  await waitFor('the command before both templates', async () =>
    (await textbox('Command').isVisible()) && (await textbox('Command').inputValue()) === 'echo typed');
  await button('Notebook').click();
  await status(/^Filled from the template Notebook\./).waitFor();
  assert.equal(await textbox('Port number').inputValue(), '8888');
  // New input has no way back.
  await textbox('Name').fill('my-notebook');
  await button('Undo').waitFor({ state: 'detached' });
  await page.getByText('Copy as curl', { exact: true }).click();
  await page.getByText(/"ports":\[8888\],"ports_keep_path":true/).first().waitFor();

  await button('Blank form').click();
  await waitFor('the empty name', async () => (await textbox('Name').inputValue()) === '');
  await button('Blank form').and(page.locator(':disabled')).waitFor();
  await waitFor('the focus on Undo', () => button('Undo').evaluate((element) => element === document.activeElement));
});

test('the job of a template runs', async () => {
  await open();
  await button('Shell').click();
  await waitFor('the name of the template', async () => (await textbox('Name').inputValue()) === 'shell');
  await launchButton().click();
  await page.waitForURL(/\/jobs\/job_/);
  const [job] = /job_[0-9a-z]+/.exec(page.url());
  await jobIn(person.api, person.org, job, ['running']);
  await person.api('POST', `/orgs/${person.org}/jobs/${job}/cancel`);
  await jobIn(person.api, person.org, job, ENDED);
  await boardsFree(operator);
});

test('a second submission before the page of the job has loaded launches no second job', async () => {
  await open();
  await chooseOffering(page, SLICE);
  await textbox('Name').fill('once');
  await textbox('Command').fill('true');
  const held = [];
  await page.route(PARTS, (route) => held.push(route));
  await launchButton().click();
  await waitFor('the held page of the job', () => held.length > 0);
  await page.getByRole('button', { name: 'Launching' }).and(page.locator(':disabled')).waitFor();
  await page.locator('#launch').evaluate((form) => form.requestSubmit());
  await Promise.all(held.splice(0).map((route) => route.continue()));
  await page.unroute(PARTS);
  await page.waitForURL(/\/jobs\/job_/);
  const { items } = await person.api('GET', `/orgs/${person.org}/jobs?limit=50`);
  const once = items.filter((job) => job.name === 'once');
  assert.equal(once.length, 1);
  await jobIn(person.api, person.org, once[0].id, ENDED);
  await boardsFree(operator);
});

test('a job uses one slice per node, and several boards', async () => {
  await open();
  const devices = page.getByRole('spinbutton', { name: 'Devices' });
  await chooseOffering(page, 'h100-80gb');
  await devices.fill('2');
  await chooseOffering(page, SLICE);
  await waitFor('one device', async () => (await devices.inputValue()) === '1' && devices.isDisabled());
  await chooseOffering(page, 'h100-80gb');
  await waitFor('a field with effect', async () => devices.isEnabled());
});

for (const width of [1440, 390]) {
  test(`the cards fit at ${width} px without findings of axe`, async () => {
    const narrow = await openPage(browser, demo.url, { headers: person.headers, viewport: { width, height: 844 } });
    await open(narrow.page);
    assert.ok((await narrow.page.evaluate(() => document.documentElement.scrollWidth)) <= width);
    const lefts = await narrow.page.locator('.model')
      .evaluateAll((cards) => cards.map((card) => Math.round(card.getBoundingClientRect().left)));
    const columns = new Set(lefts).size;
    assert.ok(width === 390 ? columns === 1 : columns > 1, `the cards begin at ${lefts}`);
    assert.deepEqual(await axeFindings(narrow.page), []);
    assert.deepEqual(narrow.faults, []);
    await narrow.close();
  });
}

test('nothing went wrong in the browser on the way', () => assert.deepEqual(view.faults, []));
