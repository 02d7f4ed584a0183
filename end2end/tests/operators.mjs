// Operators with roles: the list, a new operator, another role and the removal, and the pages of each role, at both
// widths.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { axeFindings, widthFindings } from './checks.mjs';
import { api, launchBrowser, openPage, settled, signIn, signUp, startBarePortal } from './harness.mjs';

const OPERATOR = { name: 'Harbour master', email: 'operator@example.org', password: 'lantern quay seven drizzle' };
const SIZES = [{ width: 1440, height: 900 }, { width: 390, height: 844 }];
const PAGES = ['', '/nodes', '/fleet', '/jobs', '/stuck', '/system', '/reservations', '/prices', '/orgs', '/invoices',
  '/books', '/limits', '/changes', '/settings'].map((page) => `/operator${page}`);
const INSPECTED = ['/operator/people', '/operator/operators', '/operator/audit'];
// Buttons that change something.
const ACTS =
  /^(Add node|Change price|Grant credit|Run check|Plan maintenance|Save|Set budget|Stop matching|Disable|Add operator|Remove|Require)/;

let portal, browser, headers, owner;
before(async () => {
  portal = await startBarePortal();
  browser = await launchBrowser();
  await api(portal.url, {})('POST', '/setup', { token: portal.token, ...OPERATOR });
  headers = await signIn(portal.url, OPERATOR);
  owner = api(portal.url, headers);
});
after(async () => {
  await browser?.close();
  await portal?.stop();
});

const awake = (button) => button.and(button.page().locator(':enabled')).waitFor();

async function holds(page) {
  assert.deepEqual([...(await widthFindings(page)), ...(await axeFindings(page))], [], page.url());
}

/** A person with a role of operators, signed in. */
async function operatorWith(role) {
  const person = await signUp(portal.url);
  const { user } = await owner('POST', '/operator/operators', { email: person.email, role, reason: 'A shift.' });
  return { ...person, user, headers: await signIn(portal.url, person) };
}

for (const viewport of SIZES) {
  test(`an owner adds, changes and removes an operator at ${viewport.width} px`, async () => {
    const person = await signUp(portal.url);
    const { page, faults, close } = await openPage(browser, portal.url, { headers, viewport });
    await page.goto('/operator/operators');
    await settled(page);
    await holds(page);
    const add = page.getByRole('button', { name: 'Add operator' });
    await awake(add);
    await page.getByRole('textbox', { name: 'E-mail' }).fill(person.email);
    await page.locator('#operator-role').selectOption('auditor');
    await add.click();
    await page.locator('#operator-reason[aria-invalid="true"]').waitFor();
    await page.locator('#operator-reason').fill('Reads the books.');
    await add.click();
    const row = page.getByRole('row').filter({ hasText: person.email });
    await row.getByText('auditor').waitFor();

    await row.getByRole('button', { name: `Change role of ${person.name}` }).click();
    const dialog = page.getByRole('dialog');
    assert.equal(await dialog.locator('#change-role').inputValue(), 'auditor');
    await dialog.locator('#change-role').selectOption('fleet');
    await dialog.getByLabel('Reason').fill('Replaces boards.');
    await holds(page);
    await dialog.getByRole('button', { name: 'Change role' }).click();
    await row.getByText('fleet').waitFor();

    await row.getByRole('button', { name: `Remove ${person.name}` }).click();
    await dialog.getByLabel('Reason').fill('Works elsewhere.');
    await dialog.getByRole('button', { name: 'Remove operator' }).click();
    await row.waitFor({ state: 'detached' });
    const { items } = await owner('GET', '/operator/audit-events?action=operator.removed');
    assert.match(items[0].detail, /Works elsewhere/);

    // The only active owner stays, and the dialog says so.
    const own = page.getByRole('row').filter({ hasText: OPERATOR.email });
    await own.getByRole('button', { name: `Remove ${OPERATOR.name}` }).click();
    await dialog.getByLabel('Reason').fill('Tired.');
    await dialog.getByRole('button', { name: 'Remove operator' }).click();
    await dialog.getByText(/only active owner/).first().waitFor();
    assert.deepEqual(faults.filter((fault) => !/status of (409|422)/.test(fault)), []);
    await close();
  });

  test(`an auditor reads all pages and changes nothing at ${viewport.width} px`, async () => {
    const auditor = await operatorWith('auditor');
    const { page, faults, close } = await openPage(browser, portal.url, { headers: auditor.headers, viewport });
    for (const path of [...PAGES, ...INSPECTED]) {
      await page.goto(path);
      await settled(page);
      const enabled = page.getByRole('main').getByRole('button', { name: ACTS }).and(page.locator(':enabled'));
      assert.equal(await enabled.count(), 0, path);
      await holds(page);
    }
    await page.goto('/operator/nodes');
    await page.getByText('Your role auditor reads this page.').waitFor();
    assert.deepEqual(faults, []);
    await close();
  });
}

test('each role has its own pages and controls', async () => {
  const fleet = await operatorWith('fleet');
  const view = await openPage(browser, portal.url, { headers: fleet.headers, viewport: SIZES[0] });
  await view.page.goto('/operator');
  await settled(view.page);
  const rail = view.page.getByRole('navigation', { name: 'Main' });
  await rail.getByRole('link', { name: 'Nodes', exact: true }).waitFor();
  for (const hidden of ['People', 'Operators', 'Audit']) {
    assert.equal(await rail.getByRole('link', { name: hidden, exact: true }).count(), 0, hidden);
  }
  assert.equal(await view.page.getByRole('heading', { name: 'Latest changes' }).count(), 0);
  await view.page.goto('/operator/nodes');
  await awake(view.page.getByRole('button', { name: 'Add node' }));
  for (const path of PAGES) {
    await view.page.goto(path);
    await settled(view.page);
  }
  assert.deepEqual(view.faults, []);
  await view.close();

  const billing = await operatorWith('billing');
  const desk = await openPage(browser, portal.url, { headers: billing.headers, viewport: SIZES[1] });
  await desk.page.goto('/operator/books');
  await awake(desk.page.getByRole('button', { name: 'Run check' }));
  await desk.page.goto('/operator/nodes');
  await desk.page.getByText('Your role billing reads this page.').waitFor();
  assert.equal(await desk.page.getByRole('button', { name: 'Add node' }).count(), 0);
  assert.deepEqual(desk.faults, []);
  await desk.close();
});
