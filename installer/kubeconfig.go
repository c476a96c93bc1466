//go:build linux

package installer

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// credentials are those of the projected service account.
type credentials struct {
	token, ca []byte
	// issued and expires are from the token; zero if it does not say.
	issued, expires time.Time
}

// readCredentials reads dir/token and dir/ca.crt.
func readCredentials(dir string) (credentials, error) {
	token, err := os.ReadFile(filepath.Join(dir, "token"))
	if err != nil {
		return credentials{}, err
	}
	c := credentials{token: bytes.TrimSpace(token)}
	if len(c.token) == 0 {
		return c, fmt.Errorf("%s is empty", filepath.Join(dir, "token"))
	}
	if c.ca, err = os.ReadFile(filepath.Join(dir, "ca.crt")); err != nil {
		return c, err
	}
	c.issued, c.expires = tokenTimes(string(c.token))
	return c, nil
}

// tokenTimes reads a JWT's iat and exp. It does not check the signature, because they only serve warnings.
func tokenTimes(token string) (issued, expires time.Time) {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return
	}
	var claims struct{ Iat, Exp float64 }
	if json.Unmarshal(payload, &claims) != nil {
		return
	}
	at := func(s float64) time.Time {
		if s <= 0 {
			return time.Time{}
		}
		return time.Unix(int64(s), 0)
	}
	return at(claims.Iat), at(claims.Exp)
}

// kubeconfigFor renders the plugin's credentials. It contains the token itself: the plugin runs on the host, where there is no
// projected file.
func kubeconfigFor(c Config, cred credentials) []byte {
	quote := func(s string) string { return string(marshalLine(s)) } // a JSON string is a YAML string
	var b bytes.Buffer
	fmt.Fprintf(&b, "# Written by %s; rewritten when the service account's token changes.\n", cmp.Or(strings.TrimSuffix(c.AgentPrefix, "-"), "the agent"))
	b.WriteString("apiVersion: v1\nkind: Config\nclusters:\n- name: local\n  cluster:\n")
	fmt.Fprintf(&b, "    server: %s\n", quote(c.server()))
	if c.KubernetesProtocol == "https" {
		fmt.Fprintf(&b, "    certificate-authority-data: %s\n", base64.StdEncoding.EncodeToString(cred.ca))
	}
	user := c.Plugin.Type
	fmt.Fprintf(&b, "users:\n- name: %s\n  user:\n    token: %s\n", user, quote(string(cred.token)))
	fmt.Fprintf(&b, "contexts:\n- name: %[1]s\n  context:\n    cluster: local\n    user: %[1]s\ncurrent-context: %[1]s\n", user)
	return b.Bytes()
}
