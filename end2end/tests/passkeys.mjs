// Passkeys as people use them, with the virtual authenticator of the browser: registration, the sign-in by a passkey
// alone and as the second factor, other names, and the removal.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { axeFindings } from './checks.mjs';
import { inOrg, launchBrowser, openPage, settled, signUp, startBarePortal, startClockedPortal } from './harness.mjs';

let portal, byAddress, browser;
before(async () => {
  portal = await startClockedPortal('localhost');
  byAddress = await startBarePortal();
  browser = await launchBrowser();
});
after(async () => {
  await browser?.close();
  await byAddress?.stop();
  await portal?.stop();
});

const awake = (button) => button.and(button.page().locator(':enabled')).waitFor();

/** A device of the page with a lock that the person can open. `verify` changes whether they can. */
async function addDevice(page) {
  const client = await page.context().newCDPSession(page);
  await client.send('WebAuthn.enable');
  const { authenticatorId } = await client.send('WebAuthn.addVirtualAuthenticator', {
    options: {
      protocol: 'ctap2', transport: 'internal', hasResidentKey: true, hasUserVerification: true,
      isUserVerified: true, automaticPresenceSimulation: true,
    },
  });
  return {
    verify: (isUserVerified) => client.send('WebAuthn.setUserVerified', { authenticatorId, isUserVerified }),
    credentials: async () => (await client.send('WebAuthn.getCredentials', { authenticatorId })).credentials,
  };
}

/** Adds a passkey on the page of second factors, by the keyboard. */
async function addPasskey(page, name) {
  await page.goto('/account/second-factors');
  await settled(page);
  await awake(page.getByRole('button', { name: 'Add passkey' }));
  await page.getByLabel('Name of the new passkey').fill(name);
  await page.keyboard.press('Enter');
  await page.getByText(`Passkey added: ${name}.`).waitFor();
}

/** Opens the sign-in page without a session. */
async function openSignIn(page) {
  await page.context().clearCookies();
  await page.goto('/sign-in');
  await settled(page);
}

/** Chooses the sign-in by a passkey, by the keyboard. */
async function choosePasskey(page) {
  const button = page.getByRole('button', { name: 'Sign in with a passkey' });
  await awake(button);
  await button.focus();
  await page.keyboard.press('Enter');
}

for (const width of [1440, 390]) {
  test(`a passkey is added, signs in alone and beside the password, and is removed at ${width}`, async () => {
    const person = await signUp(portal.url);
    const home = (url) => url.pathname === inOrg(person.slug);
    const { page, close } = await openPage(browser, portal.url, {
      headers: person.headers, viewport: { width, height: 900 },
    });
    const device = await addDevice(page);
    await page.goto('/account/second-factors');
    await settled(page);
    const add = page.getByRole('button', { name: 'Add passkey' });
    await awake(add);
    await add.click();
    await page.locator('#passkey-name[aria-invalid="true"]').waitFor();
    assert.equal((await device.credentials()).length, 0, 'the name comes before the passkey');
    await addPasskey(page, 'Laptop');
    await page.locator('#new-codes:focus').waitFor();
    assert.equal(await page.getByRole('list', { name: 'Recovery codes' }).getByRole('listitem').count(), 10);
    await page.getByText('10 recovery codes left.').waitFor();
    const [made] = await device.credentials();
    assert.ok(made.isResidentCredential);
    assert.equal(made.rpId, 'localhost');
    assert.deepEqual(await axeFindings(page), []);

    // The device has a passkey of this account already.
    await page.getByLabel('Name of the new passkey').fill('Again');
    await add.click();
    await page.getByRole('alert').getByText('Passkey exists').waitFor();

    await openSignIn(page);
    assert.deepEqual(await axeFindings(page), []);
    await choosePasskey(page);
    await page.waitForURL(home);

    await openSignIn(page);
    await page.getByRole('textbox', { name: 'E-mail' }).fill(person.email);
    await page.getByLabel('Password', { exact: true }).fill(person.password);
    await page.getByRole('button', { name: 'Sign in', exact: true }).click();
    await page.locator('#code:focus').waitFor();
    assert.deepEqual(await axeFindings(page), []);
    await page.getByRole('button', { name: 'Use a passkey' }).click();
    await page.waitForURL(home);

    await page.goto('/account/second-factors');
    await settled(page);
    const rename = page.getByRole('button', { name: 'Rename Laptop' });
    await awake(rename);
    await rename.click();
    const naming = page.getByRole('dialog', { name: 'Rename the passkey' });
    await naming.getByLabel('New name').fill('Phone');
    await naming.getByRole('button', { name: 'Rename passkey' }).click();
    await page.getByText('Passkey renamed: Phone.').waitFor();
    await page.getByRole('rowheader', { name: 'Phone' }).waitFor();
    await page.getByRole('button', { name: 'Remove Phone' }).click();
    const removal = page.getByRole('dialog', { name: 'Remove Phone?' });
    await removal.getByText(/last second factor/).waitFor();
    await removal.getByRole('button', { name: 'Keep passkey' }).click();
    await removal.waitFor({ state: 'hidden' });
    await page.getByRole('button', { name: 'Remove Phone' }).click();
    await removal.getByRole('button', { name: 'Remove passkey' }).click();
    await page.getByText('Passkey removed: Phone.').waitFor();
    await page.getByText('10 recovery codes left.').waitFor({ state: 'hidden' });

    // The device still has the passkey; the portal does not.
    await openSignIn(page);
    await choosePasskey(page);
    await page.getByRole('alert').getByText('Passkey refused').waitFor();
    assert.equal(new URL(page.url()).pathname, '/sign-in');
    await close();
  });
}

test('a person who does not open the lock of the device is not signed in', async () => {
  const person = await signUp(portal.url);
  const { page, close } = await openPage(browser, portal.url, { headers: person.headers });
  const device = await addDevice(page);
  await addPasskey(page, 'Laptop');
  await openSignIn(page);
  await device.verify(false);
  await choosePasskey(page);
  await page.getByRole('alert').getByText('No passkey').waitFor();
  await device.verify(true);
  await choosePasskey(page);
  await page.waitForURL((url) => url.pathname === inOrg(person.slug));
  await close();
});

test('a step with consequences accepts a passkey as the proof', async () => {
  const person = await signUp(portal.url);
  const { page, close } = await openPage(browser, portal.url, { headers: person.headers });
  const device = await addDevice(page);
  await addPasskey(page, 'Laptop');
  await portal.forward(16 * 60);
  await page.getByRole('button', { name: 'Remove Laptop' }).click();
  await page.getByRole('dialog', { name: 'Remove Laptop?' }).getByRole('button', { name: 'Remove passkey' }).click();
  const dialog = page.getByRole('dialog', { name: 'Identity check' });
  const use = dialog.getByRole('button', { name: 'Use a passkey' });
  await use.waitFor();
  await device.verify(false);
  await use.click();
  await dialog.getByText('No passkey').waitFor();
  await device.verify(true);
  await use.click();
  await page.getByText('Passkey removed: Laptop.').waitFor();
  await close();
});

test('a portal at an IP address offers no passkeys', async () => {
  const person = await signUp(byAddress.url);
  const { page, close } = await openPage(browser, byAddress.url, { headers: person.headers });
  await page.goto('/account/second-factors');
  await settled(page);
  await page.getByText(/Browsers have passkeys only at an https address/).waitFor();
  assert.equal(await page.getByRole('button', { name: 'Add passkey' }).count(), 0);
  await openSignIn(page);
  await awake(page.getByRole('button', { name: 'Sign in', exact: true }));
  assert.equal(await page.getByRole('button', { name: 'Sign in with a passkey' }).count(), 0);
  await close();
});
