package plugin_test

import (
	"bytes"
	"encoding/json"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/internal/node/attachment"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/plugin"
	"github.com/meshcni/meshcni/plugin/netconf"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// FuzzRun: whatever the runtime says, the plugin ends with 0 or 1, stdout has one JSON object or nothing, an error has
// a code and a message, and rules are there only if the ADD succeeded.
func FuzzRun(f *testing.F) {
	good, err := json.Marshal(newCall().config)
	require.NoError(f, err)
	env := newCall().env
	for _, verb := range []string{"ADD", "CHECK", "DEL", "GC", "STATUS", "VERSION", "", "NONE"} {
		f.Add(verb, env["CNI_ARGS"], good)
	}
	for _, text := range []string{
		"", "{", "null", "[]", `{"cniVersion":"1.1.0","name":"n"}`, `{"cniVersion":"0.3.1","name":"n","prevResult":{"ips":[{"version":"4","address":"10.0.0.1/8"}]}}`,
		`{"cniVersion":"0.4.0","name":"n","prevResult":{"cniVersion":"1.0.0","ips":[{"address":"::ffff:1.2.3.4/128","interface":-1}]},"uncaptured_family":"drop"}`,
		`{"cniVersion":"1.0.0","name":"n","prevResult":{},"runtimeConfig":{"io.kubernetes.cri.pod-annotations":{"sidecar.istio.io/status":""}}}`,
		`{"cniVersion":"1.0.0","name":"n","backend":"nftables","log_level":"warn","add_deadline":"1ns","kubernetes":{"exclude_namespaces":["shop"]}}`,
		`{"cniVersion":"1.0.0","name":"n","dialect":["linkerd","istio","consul"]}`, `{"cniVersion":"1.0.0","name":"n","dialect":["osm","","osm",null]}`,
	} {
		f.Add("ADD", env["CNI_ARGS"], []byte(text))
	}
	f.Add("ADD", ";;=;K8S_POD_NAME=a;K8S_POD_NAMESPACE=b", good)
	f.Add("ADD", "K8S_POD_NAME", good)
	f.Fuzz(func(t *testing.T, verb, args string, stdin []byte) {
		c := newCall()
		c.plugin.Attachments = func(netconf.Config) attachment.Store { return attachment.Store{} }
		c.pods.Permanent = true // no waiting for pods that aren't there
		if len(stdin)%7 == 0 {
			c.netns.OpenErr = netnsexec.ErrGone
		}
		if strings.Contains(args, "K8S_POD_UID") && !strings.Contains(args, podUID) {
			return // another UID is waited for
		}
		var stdout bytes.Buffer
		get := func(key string) string {
			switch key {
			case "CNI_COMMAND":
				return verb
			case "CNI_ARGS":
				return args
			}
			return c.env[key]
		}
		code := c.plugin.Run(t.Context(), plugin.IO{Getenv: get, Stdin: bytes.NewReader(stdin), Stdout: &stdout, Stderr: io.Discard})
		if stdout.Len() > 0 {
			var document map[string]any
			require.NoError(t, json.Unmarshal(stdout.Bytes(), &document), stdout.String())
			require.NotEmpty(t, document["cniVersion"])
		}
		switch code {
		case 0:
			require.Equal(t, verb == "ADD" || verb == "VERSION", stdout.Len() > 0, stdout.String())
		case 1:
			require.Contains(t, stdout.String(), `"code": `)
			require.Contains(t, stdout.String(), `"msg": "`)
		default:
			t.Fatalf("exit code %d", code)
		}
		applied := !c.netns.Live.Equal(ruleset.Ruleset{})
		require.False(t, applied && (code != 0 || verb != "ADD"), "rules after %s and exit code %d", verb, code)
		require.Equal(t, c.netns.Opened, c.netns.Closed)
	})
}
