package agreementtest_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/cmd/nodecmd"
	"github.com/meshcni/meshcni/dialect/builtin"
	"github.com/meshcni/meshcni/nodeagent"
	"github.com/meshcni/meshcni/plugin"
	"github.com/meshcni/meshcni/plugin/netconf"
	"github.com/meshcni/meshcni/plugin/plugintest"
)

// TestTheAgentTakesNothingThatThePluginRefuses: whatever entry the plugin would refuse, with which no pod of the node would start, the agent
// refuses at its start and at a change, so that it neither takes the place of an older one nor is ready. That holds for each key of a template with
// each kind of value, and for each flag and variable.
func TestTheAgentTakesNothingThatThePluginRefuses(t *testing.T) {
	t.Parallel()
	wrong := 0
	for name, s := range settingsOfEntries(t) {
		c, refused := nodecmd.Program{Env: func(key string) (string, bool) { v, ok := s.env[key]; return v, ok }}.Parse(append([]string{"run"}, s.args...))
		// Which versions the plugin speaks, the installer asks the binary that it installs.
		if failure := refusedByThePlugin(t, c); failure != "" && !strings.Contains(failure, "incompatible CNI versions") {
			wrong++
			assert.Error(t, refused, "%s: the plugin says: %s", name, failure)
		}
	}
	assert.Greater(t, wrong, 100, "settings that the plugin refuses")

	for says, s := range map[string]agentSettings{
		"template: backend: ":                              template(`"backend":"ebpf"`),
		"template: add_deadline: ":                         template(`"add_deadline":"0s"`),
		"template: add-deadline 1ms: must be at least 1s":  template(`"add_deadline":"1ms"`),
		"add-deadline 999ms: must be at least 1s":          {args: []string{"--add-deadline=999ms"}},
		"template: kubernetes.kubeconfig: ":                template(`"kubernetes":{"kubeconfig":"/etc/kubeconfig"}`),
		"template: run_dir: ":                              template(`"agent":"require","run_dir":"/run/elsewhere"`, "--node-name=n"),
		"agent=require needs node-name":                    template(`"agent":"require"`),
		"ambient, whose pods only the node's agent can":    template(`"agent":"off","dialect":"ambient"`, "--ambient", "--node-name=n"),
		`"ambient": its pods need an agent that hands the`: template(`"dialect":["istio","ambient"]`),
		`template: name "a b": must be letters`:            template(`"name":"a b"`, "--chained=false"),
	} {
		_, err := nodecmd.Program{Env: func(key string) (string, bool) { v, ok := s.env[key]; return v, ok }}.Parse(append([]string{"run"}, s.args...))
		assert.ErrorContains(t, err, says, "%v", s)
	}
}

// agentSettings are those of a run of the agent.
type agentSettings struct {
	env  map[string]string
	args []string
}

func template(keys string, args ...string) agentSettings {
	return agentSettings{map[string]string{"CNI_NETWORK_CONFIG": `{"type":"meshcni",` + keys + `}`}, args}
}

// settingsOfEntries has each key of an entry with values of each kind, in a template, and each flag and variable of one.
func settingsOfEntries(t *testing.T) map[string]agentSettings {
	t.Helper()
	values := []string{`"nope"`, `""`, `"1ms"`, `"0s"`, `"-1s"`, `"off"`, `"require"`, `"a in b"`, `"a b"`, `"9.9.9"`, `7`, `-1.5`, `true`, `null`, `[]`, `["istio","istio"]`, `["nope",""]`, `[7]`, `{}`, `{"a":7}`}
	all := map[string]agentSettings{}
	add := func(format, key string) {
		for _, v := range values {
			keys := fmt.Sprintf(format, v)
			all[key+" "+v] = template(keys)
			switch key {
			case "name", "cniVersion":
				all[key+" "+v+", alone"] = template(keys, "--chained=false")
			case "agent", "dialect", "run_dir":
				all[key+" "+v+", ambient"] = template(keys, "--ambient", "--node-name=n", "--dialect=ambient,istio")
			}
		}
	}
	for _, f := range reflect.VisibleFields(reflect.TypeFor[netconf.Config]()) {
		if key, _, _ := strings.Cut(f.Tag.Get("json"), ","); key != "-" && key != "type" {
			add(`"`+key+`":%s`, key)
		}
	}
	for _, f := range reflect.VisibleFields(reflect.TypeFor[netconf.Kubernetes]()) {
		key, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		add(`"kubernetes":{"`+key+`":%s}`, "kubernetes."+key)
	}
	for _, key := range []string{"runtimeConfig", "capabilities", "cniVersions", "ipam"} {
		add(`"`+key+`":%s`, key)
	}
	add(`"runtimeConfig":{"io.kubernetes.cri.pod-annotations":%s}`, "annotations")
	for _, d := range builtin.All() {
		add(`"`+d.Name+`":%s`, d.Name)
	}
	for _, key := range []string{"dns_capture", "ipv6", "enablement_selectors", "probe_ipv4", "probe_ipv6", "nope"} {
		add(`"ambient":{"`+key+`":%s}`, "ambient."+key)
	}
	for _, flag := range []string{
		"dialect", "agent", "backend", "log-level", "add-deadline", "uncaptured-family", "exclude-namespaces", "exclude-namespace-selector", "refuse-proxy-uid", "refuse-net-raw", "write-status",
		"ready-without-agent", "pod-namespace", "run-dir", "cni-bin-dir", "ambient-dns-capture", "ambient-ipv6", "ambient-enablement-selectors", "ambient-probe-ipv4", "ambient-probe-ipv6", "kubernetes-service-host", "cni-conf-name",
	} {
		for _, v := range values {
			text := strings.Trim(v, `"`)
			all["--"+flag+"="+text] = agentSettings{args: []string{"--" + flag + "=" + text}}
			all["$"+flag+"="+text] = agentSettings{env: map[string]string{"MESHCNI_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_")): text}}
		}
	}
	for name, s := range all {
		s.args = append(slices.Clone(s.args), "--kubernetes-service-host=::1")
		all[name] = s
	}
	return all
}

// refusedByThePlugin returns why an ADD fails with the entry that the agent would write, for what is no pod. Empty: it does not.
func refusedByThePlugin(t *testing.T, c nodeagent.Config) string {
	t.Helper()
	text, err := c.Entry()
	if err != nil {
		return "" // there is no entry to write
	}
	var entry map[string]any
	require.NoError(t, json.Unmarshal(text, &entry))
	if c.Chained {
		maps.Copy(entry, map[string]any{"cniVersion": "1.0.0", "name": "net"}) // the list's
	}
	maps.Copy(entry, map[string]any{"prevResult": map[string]any{"cniVersion": "1.0.0"}, "run_dir": t.TempDir()})
	config, err := json.Marshal(entry)
	require.NoError(t, err)
	pods, ns := plugintest.NewPods(), &plugintest.NetNS{}
	env := map[string]string{
		"CNI_COMMAND": "ADD", "CNI_CONTAINERID": "c", "CNI_NETNS": "/n", "CNI_IFNAME": "eth0", "CNI_PATH": "/b",
	}
	var stdout bytes.Buffer
	p := plugin.Plugin{Dialects: builtin.All(), OpenPods: pods.Open, OpenNetNS: ns.Open}
	if p.Run(t.Context(), plugin.IO{Getenv: func(k string) string { return env[k] }, Stdin: bytes.NewReader(config), Stdout: &stdout}) == 0 {
		return ""
	}
	return stdout.String()
}
