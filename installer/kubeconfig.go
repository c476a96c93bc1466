//go:build linux

package installer

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
)

// credentials are a service account's.
type credentials struct {
	token
	ca []byte
}

// readCredentials reads dir/token and dir/ca.crt.
func readCredentials(dir string) (c credentials, err error) {
	value, err := os.ReadFile(filepath.Join(dir, "token"))
	if err != nil {
		return c, err
	}
	c.token = parseToken(string(bytes.TrimSpace(value)))
	if c.value == "" {
		return c, fmt.Errorf("%s is empty", filepath.Join(dir, "token"))
	}
	c.ca, err = os.ReadFile(filepath.Join(dir, "ca.crt"))
	return c, err
}

// kubeconfigFor renders the plugin's credentials. It contains the token itself: the plugin runs on the host, where there is no
// projected file.
func kubeconfigFor(c Config, cred credentials) []byte {
	quote := func(s string) string { return string(marshalLine(s)) } // a JSON string is a YAML string
	var b bytes.Buffer
	fmt.Fprintf(&b, "# Written by %s; rewritten when the token is renewed.\n", c.Identity.WithDefaults().Agent)
	b.WriteString("apiVersion: v1\nkind: Config\nclusters:\n- name: local\n  cluster:\n")
	fmt.Fprintf(&b, "    server: %s\n", quote(c.server()))
	if c.KubernetesProtocol == "https" {
		fmt.Fprintf(&b, "    certificate-authority-data: %s\n", base64.StdEncoding.EncodeToString(cred.ca))
	}
	user := c.Plugin.Type
	fmt.Fprintf(&b, "users:\n- name: %s\n  user:\n    token: %s\n", user, quote(cred.value))
	fmt.Fprintf(&b, "contexts:\n- name: %[1]s\n  context:\n    cluster: local\n    user: %[1]s\ncurrent-context: %[1]s\n", user)
	return b.Bytes()
}
