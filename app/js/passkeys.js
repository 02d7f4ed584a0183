// Asks the browser for passkeys: a new one, or a signature by one. Options and answers are the JSON forms of WebAuthn
// Level 3, as texts. Reads and changes no page.

/** The type of credentials, in a browser with the JSON forms. */
function credentialType() {
  const type = globalThis.PublicKeyCredential;
  if (!type?.parseCreationOptionsFromJSON || !type.parseRequestOptionsFromJSON || !type.prototype.toJSON) {
    throw new DOMException("The browser has no JSON forms of passkeys.", "NotSupportedError");
  }
  return type;
}

/** Makes a passkey on the device that the person chooses. */
export async function createPasskey(options) {
  const publicKey = credentialType().parseCreationOptionsFromJSON(JSON.parse(options));
  const made = await navigator.credentials.create({ publicKey });
  return JSON.stringify(made.toJSON());
}

/** Signs by the passkey that the person chooses. */
export async function signByPasskey(options) {
  const publicKey = credentialType().parseRequestOptionsFromJSON(JSON.parse(options));
  const signed = await navigator.credentials.get({ publicKey });
  return JSON.stringify(signed.toJSON());
}
