//go:build linux

package installer

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Credentials are what the projected service account gives.
type Credentials struct {
	Token []byte
	CA    []byte
	// Issued and Expires are the token's own, or zero when it does not say.
	Issued, Expires time.Time
}

// ReadCredentials reads dir/token and dir/ca.crt. The CA may be absent with plain http only, which the caller judges.
func ReadCredentials(dir string) (Credentials, error) {
	token, err := os.ReadFile(filepath.Join(dir, "token"))
	if err != nil {
		return Credentials{}, err
	}
	c := Credentials{Token: bytes.TrimSpace(token)}
	if len(c.Token) == 0 {
		return c, fmt.Errorf("%s is empty", filepath.Join(dir, "token"))
	}
	if c.CA, err = os.ReadFile(filepath.Join(dir, "ca.crt")); err != nil {
		return c, err
	}
	c.Issued, c.Expires = tokenTimes(string(c.Token))
	return c, nil
}

// tokenTimes reads a JWT's iat and exp without checking the signature: they tell when to worry, nothing else.
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

// kubeconfigFor renders the plugin's credentials. The token stands in the file, because the plugin runs on the host, where
// the projected file is not.
func kubeconfigFor(c Config, cred Credentials) []byte {
	quote := func(s string) string { return string(marshalLine(s)) } // a JSON string is a YAML string
	var b bytes.Buffer
	b.WriteString("# Written by meshcni-node; rewritten when the service account's token changes.\n")
	b.WriteString("apiVersion: v1\nkind: Config\nclusters:\n- name: local\n  cluster:\n")
	fmt.Fprintf(&b, "    server: %s\n", quote(c.Server()))
	if c.KubernetesProtocol == "https" {
		fmt.Fprintf(&b, "    certificate-authority-data: %s\n", base64.StdEncoding.EncodeToString(cred.CA))
	}
	fmt.Fprintf(&b, "users:\n- name: meshcni\n  user:\n    token: %s\n", quote(string(cred.Token)))
	b.WriteString("contexts:\n- name: meshcni\n  context:\n    cluster: local\n    user: meshcni\ncurrent-context: meshcni\n")
	return b.Bytes()
}
