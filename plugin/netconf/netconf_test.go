package netconf_test

import (
	"encoding/json"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/plugin/netconf"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// entry is what the installer has put into conflists since the first version.
const entry = `{
  "type": "meshcni",
  "dialect": "istio",
  "backend": "auto",
  "log_level": "info",
  "run_dir": "/var/run/meshcni",
  "pod_namespace": "meshcni-system",
  "add_deadline": "30s",
  "kubernetes": {
    "kubeconfig": "/var/run/meshcni/kubeconfig",
    "exclude_namespaces": [],
    "cni_bin_dir": "/opt/cni/bin"
  },
  "capabilities": {
    "io.kubernetes.cri.pod-annotations": true
  }
}
`

func TestMarshal(t *testing.T) {
	assert.Equal(t, entry, string(netconf.Config{Dialects: netconf.Dialects{netconf.DefaultDialect}}.Marshal()))

	all := netconf.Config{
		CNIVersion: "1.0.0", Name: "mesh", Type: "acme-cni", Agent: "require", Backend: "nftables", LogLevel: "warn", RunDir: "/run/a&b",
		PodNamespace: "acme", AddDeadline: netconf.Duration(90 * time.Second), UncapturedFamily: redirect.UncapturedDrop,
		RefuseProxyUID: true, RefuseNetRaw: true, AllowSandboxed: true, SandboxedClasses: []string{"secure"}, WriteStatus: true, ReadyWithoutAgent: true,
		Kubernetes: netconf.Kubernetes{ExcludeNamespaces: []string{"a", "b"}, ExcludeNamespaceSelector: "a&b!=c", CNIBinDir: "/bin"},
	}
	const want = `{"cniVersion":"1.0.0","name":"mesh","type":"acme-cni","agent":"require","backend":"nftables","log_level":"warn","run_dir":"/run/a&b",` +
		`"pod_namespace":"acme","add_deadline":"1m30s","uncaptured_family":"drop","refuse_proxy_uid":true,"refuse_net_raw":true,"allow_sandboxed":true,"sandboxed_classes":["secure"],"write_status":true,` +
		`"ready_without_agent":true,"kubernetes":{"kubeconfig":"/run/a&b/kubeconfig","exclude_namespaces":["a","b"],"exclude_namespace_selector":"a&b!=c","cni_bin_dir":"/bin"},` +
		`"capabilities":{"io.kubernetes.cri.pod-annotations":true}}`
	got, err := all.MarshalJSON()
	require.NoError(t, err)
	assert.Equal(t, want, string(got))
	assert.JSONEq(t, want, string(all.Marshal()))

	read, unknown, err := netconf.Parse(all.Marshal(), meshcni.Identity{})
	require.NoError(t, err)
	assert.Empty(t, unknown)
	all.Kubernetes.Kubeconfig = "/run/a&b/kubeconfig"
	assert.Equal(t, all, read)
}

// What an entry leaves out means what Marshal writes for it.
func TestDefaults(t *testing.T) {
	told, _, err := netconf.Parse([]byte(entry), meshcni.Identity{})
	require.NoError(t, err)
	left, _, err := netconf.Parse([]byte(`{"type": "meshcni", "dialect": "istio", "kubernetes": {"exclude_namespaces": []}}`), meshcni.Identity{})
	require.NoError(t, err)
	assert.Equal(t, told, left)
	assert.Equal(t, slog.LevelInfo, left.LogLevel.Level())
	assert.Equal(t, netconf.DefaultAddDeadline, left.AddDeadline)
}

// The backends are those that package apply has. It is not imported for them: it brings a netlink library.
func TestBackends(t *testing.T) {
	for _, name := range []ruleset.Backend{ruleset.BackendAuto, ruleset.BackendIptables, ruleset.BackendIptablesNFT, ruleset.BackendIptablesLegacy, ruleset.BackendNftables} {
		c, _, err := netconf.Parse([]byte(`{"backend": "`+string(name)+`"}`), meshcni.Identity{})
		require.NoError(t, err)
		assert.EqualValues(t, name, c.Backend)
	}
	_, wrong := ruleset.ParseBackend("ebpf")
	_, _, err := netconf.Parse([]byte(`{"backend": "ebpf"}`), meshcni.Identity{})
	require.EqualError(t, err, "backend: "+wrong.Error())
}

func TestParseReportsEveryKey(t *testing.T) {
	c, unknown, err := netconf.Parse([]byte(`{"dialect": 1, "log_level": "loud", "add_deadline": "-1s", "uncaptured_family": "keep",
		"refuse_proxy_uid": "yes", "kubernetes": {"kubeconfig": [], "exclude_namespaces": "a", "color": 1}, "colour": 2, "cni.dev/x": 3,
		"run_dir": "", "pod_namespace": null}`), meshcni.Identity{})
	require.EqualError(t, err, `dialect: want a string or a list of strings, not 1
log_level: log level "loud": allowed are debug, info, warn, error
add_deadline: want a duration above 0
uncaptured_family: "keep" is not one of allow, drop
refuse_proxy_uid: want true or false, not "yes"
kubernetes.kubeconfig: want a string, not []
kubernetes.exclude_namespaces: want a list of strings, not "a"`)
	assert.Equal(t, []string{"colour", "kubernetes.color"}, unknown)
	assert.Equal(t, "/var/run/meshcni", c.RunDir)
	assert.Equal(t, "meshcni-system", c.PodNamespace)

	var syntax *json.SyntaxError
	_, _, err = netconf.Parse([]byte(`{`), meshcni.Identity{})
	require.ErrorAs(t, err, &syntax)
	var kind *json.UnmarshalTypeError
	for _, text := range []string{"null", "[]"} {
		_, _, err = netconf.Parse([]byte(text), meshcni.Identity{})
		require.ErrorAs(t, err, &kind)
	}
}

func TestParseRuntimeKeys(t *testing.T) {
	c, unknown, err := netconf.Parse([]byte(`{"cniVersion": "1.0.0", "name": "n", "type": "meshcni", "ipam": {}, "capabilities": 3,
		"runtimeConfig": {"portMappings": [], "io.kubernetes.cri.pod-annotations": {}}, "prevResult": {"ips": []}}`), meshcni.Identity{})
	require.NoError(t, err)
	assert.Empty(t, unknown)
	assert.NotNil(t, c.Annotations)
	assert.JSONEq(t, `{"ips": []}`, string(c.PrevResult))
}

// A single mesh is written as entries have always had it.
func TestDialects(t *testing.T) {
	for text, want := range map[string]netconf.Dialects{
		`null`: nil, `""`: nil, `"istio"`: {"istio"}, `["istio"]`: {"istio"}, `["ambient","istio"]`: {"ambient", "istio"},
	} {
		c, _, err := netconf.Parse([]byte(`{"dialect": `+text+`}`), meshcni.Identity{})
		require.NoError(t, err, text)
		assert.Equal(t, want, c.Dialects, text)
		written := string(c.Marshal())
		switch {
		case len(want) == 0:
			assert.NotContains(t, written, "dialect")
		case len(want) == 1:
			assert.Contains(t, written, `"dialect": "istio",`)
		}
		again, _, err := netconf.Parse([]byte(written), meshcni.Identity{})
		require.NoError(t, err, text)
		assert.Equal(t, want, again.Dialects, text)

		var flag netconf.Dialects
		require.NoError(t, flag.UnmarshalText([]byte(want.String())))
		assert.Equal(t, want, flag, "as a flag")
	}
	for text, says := range map[string]string{
		`[]`:                                "dialect: the list is empty",
		`[""]`:                              "dialect: a name is empty",
		`["istio", "ambient", "istio", ""]`: "dialect: \"istio\" is named twice\ndialect: a name is empty",
		`["istio", 1]`:                      `dialect: want a string or a list of strings, not ["istio", 1]`,
		`{}`:                                "dialect: want a string or a list of strings, not {}",
		`true`:                              "dialect: want a string or a list of strings, not true",
	} {
		_, _, err := netconf.Parse([]byte(`{"dialect": `+text+`}`), meshcni.Identity{})
		require.EqualError(t, err, says, text)
	}
}

// TestExcludeNamespacesAreTrimmed: lists that people write with spaces mean the names, and are written without.
func TestExcludeNamespacesAreTrimmed(t *testing.T) {
	c, unknown, err := netconf.Parse([]byte(`{"kubernetes": {"exclude_namespaces": [" mesh-system", "storage\t", "", " "]}}`), meshcni.Identity{})
	require.NoError(t, err)
	assert.Empty(t, unknown)
	assert.Equal(t, []string{"mesh-system", "storage"}, c.Kubernetes.ExcludeNamespaces)
	c.Kubernetes.ExcludeNamespaces = []string{" a "}
	assert.Contains(t, string(c.Marshal()), `"a"`)
}
