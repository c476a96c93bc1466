package deploy_test

import (
	"bytes"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/cmd/nodecmd"
)

// TestTheChartRefuses: what the agent would refuse at its start, on each node, the chart refuses before anything is replaced; and what neither
// Kubernetes nor a node could bear.
func TestTheChartRefuses(t *testing.T) {
	t.Parallel()
	rolling := func(v values) values { return values{"updateStrategy": values{"rollingUpdate": v}} }
	for says, all := range map[string][]values{
		"addDeadline ":                                     {set("addDeadline", "0s"), set("addDeadline", "0h0.0ms"), set("addDeadline", "1ms"), set("addDeadline", "999ms")},
		"ambient.verifyInterval ":                          {ambientOn.with(set("ambient.verifyInterval", "1ms")), set("ambient.verifyInterval", "0s"), set("ambient.verifyInterval", "999999us")},
		"repair.verifyInterval ":                           {set("repair.verifyInterval", "1ms")},
		"excludeNamespaceSelector ":                        {set("excludeNamespaceSelector", "a in b"), set("excludeNamespaceSelector", "a=b,"), set("excludeNamespaceSelector", "a==b c"), set("excludeNamespaceSelector", "-a")},
		"repair.labelSelector ":                            {set("repair.labelSelector", "app=(x")},
		"repair.fieldSelector ":                            {set("repair.fieldSelector", "metadata.label=x"), set("repair.fieldSelector", "metadata.name")},
		"pluginConfig is no JSON":                          {set("pluginConfig", "type: meshcni"), set("pluginConfig", `["meshcni"]`), set("pluginConfig", `{"type": "meshcni"`)},
		`pluginConfig has no "type"`:                       {set("pluginConfig", `{}`), set("pluginConfig", `{"type": 1}`), set("pluginConfig", `{"type": "../x"}`)},
		"the agent writes":                                 {set("pluginConfig", `{"type": "meshcni"}`).with(set("cni.runDir", "/run/elsewhere"))},
		`has no such flag`:                                 {set("extraArgs", []string{"--nope"}), set("extraArgs", []string{"--log-levels=debug"})},
		"are both 0":                                       {rolling(values{"maxSurge": 0, "maxUnavailable": 0}), rolling(values{"maxSurge": "0%", "maxUnavailable": 0}), rolling(values{"maxUnavailable": 0})},
		"Kubernetes refuses both":                          {rolling(values{"maxSurge": 1, "maxUnavailable": "10%"})},
		"cni.enabled false needs runtimeHook.mode capture": {alone.with(set("runtimeHook.mode", "gate")), alone.with(set("runtimeHook.mode", "auto")), alone.with(set("runtimeHook.mode", "off")), alone.with(set("runtimeHook.mode", false))},
		"needs runtimeHook.pluginDir":                      {set("runtimeHook.preinstall", true).with(set("runtimeHook.pluginDir", "")), set("runtimeHook.preinstall", true).with(set("profile", "gke"))},
		"only the plugin of product meshcni":               {acme.with(set("runtimeHook.preinstall", true))},
		"does not go with agent off":                       {alone.with(set("agent", "off"))},
		"needs 64Mi at least":                              {set("resources.limits.memory", "20Mi"), set("resources.limits.memory", "60000k"), set("resources.limits.memory", 1000)},
	} {
		for _, v := range all {
			_, err := render(t, v)
			require.ErrorContains(t, err, "these values cannot work", "%v", v)
			assert.ErrorContains(t, err, says, "%v", v)
		}
	}
	ok := []values{
		set("addDeadline", "0h1.0s"), ambientOn.with(set("ambient.verifyInterval", "1s")), set("repair.verifyInterval", "0"), set("excludeNamespaceSelector", "!a.b/c_d, x notin ( , y ) ,z>3,w!="),
		set("repair.fieldSelector", "metadata.namespace!=dev,spec.nodeName=x"), set("pluginConfig", `{"type": "meshcni", "port": __KUBERNETES_SERVICE_PORT__}`),
		set("extraArgs", []string{"--log-level=debug", "--write-status"}), rolling(values{"maxSurge": 0}), rolling(values{"maxUnavailable": "10%"}), set("resources.limits.memory", "64Mi"),
		alone, alone.with(values{"runtimeHook": values{"mode": "auto"}, "repair": values{"mode": "repair"}}), set("resources.limits.memory", nil), set("resources.limits.memory", 268435456),
	}
	_, err := tryRenderAll(t, ok)
	assert.NoError(t, err)
}

// TestTheAgentRefusesThem: of the values above those that are the agent's, it refuses as the chart does; the others it takes.
func TestTheAgentRefusesThem(t *testing.T) {
	t.Parallel()
	m := newMachine(t, mustRender(t, nil))
	for _, arg := range []string{
		"--add-deadline=0s", "--add-deadline=999ms", "--exclude-namespace-selector=a in b", "--exclude-namespace-selector=a=b,", "--exclude-namespace-selector=a==b c", "--exclude-namespace-selector=-a", "--nope", "--log-levels=debug",
		"--alone=yes",
	} {
		_, err := nodecmd.Program{Env: m.env}.Parse(append(append([]string{"run"}, m.args()...), arg))
		assert.Error(t, err, arg)
	}
	for _, text := range []string{"type: meshcni", `["meshcni"]`, `{}`, `{"type": "../x"}`} {
		m.write("/etc/meshcni/plugin.json", text)
		_, err := nodecmd.Program{Env: m.env}.Parse(append(append([]string{"run"}, m.args()...), "--plugin-config="+m.path("/etc/meshcni/plugin.json")))
		assert.Error(t, err, text)
	}
	taken, err := nodecmd.Program{Env: m.env}.Parse(append(append([]string{"run"}, m.args()...), "--alone", "--runtime-hook=capture"))
	require.NoError(t, err)
	assert.True(t, taken.Alone)
	for _, args := range [][]string{{"--runtime-hook=gate"}, {"--runtime-hook=off"}, {"--runtime-hook=auto", "--agent=off"}, {"--runtime-hook=capture", "--node-name="}} {
		_, err := nodecmd.Program{Env: m.env}.Parse(slices.Concat([]string{"run"}, m.args(), []string{"--alone"}, args))
		assert.ErrorContains(t, err, "alone needs", "%v", args)
	}
	for _, arg := range []string{"--add-deadline=0h1.5s", "--exclude-namespace-selector=!a.b/c_d, x notin ( , y ) ,z>3,w!="} {
		_, err := nodecmd.Program{Env: m.env}.Parse(append(append([]string{"run"}, m.args()...), arg))
		assert.NoError(t, err, arg)
	}
}

// TestTheChartRefusesAsTheAgentDoes: a value of a template of the entry, of extraArgs or of extraEnv that the agent would refuse on each node is
// refused before anything is replaced, and none that it takes.
func TestTheChartRefusesAsTheAgentDoes(t *testing.T) {
	t.Parallel()
	var all []values
	for _, keys := range []string{
		`"backend":"ebpf"`, `"backend":"nftables"`, `"backend":["auto"]`, `"backend":""`, `"backend":null`, `"agent":"never"`, `"agent":"require"`, `"agent":"false"`, `"agent":false`,
		`"log_level":"loud"`, `"log_level":"WARN"`, `"log_level":"__LOG_LEVEL__"`, `"add_deadline":"0s"`, `"add_deadline":"1ms"`, `"add_deadline":"soon"`, `"add_deadline":30`, `"add_deadline":"1m1.5s"`,
		`"uncaptured_family":"deny"`, `"uncaptured_family":"drop"`, `"dialect":"nope"`, `"dialect":""`, `"dialect":"kuma"`, `"dialect":[]`, `"dialect":["istio","linkerd"]`, `"dialect":["istio","istio"]`,
		`"dialect":["istio","nope"]`, `"dialect":["istio",7]`, `"dialect":7`, `"dialect":"istio,kuma"`, `"dialect":"ambient"`, `"refuse_proxy_uid":"yes"`, `"refuse_net_raw":true`, `"write_status":1`,
		`"ready_without_agent":null`, `"run_dir":7`, `"pod_namespace":[]`, `"pod_namespace":"mesh"`, `"kubernetes":[]`, `"kubernetes":7`, `"kubernetes":null`, `"kubernetes":{"kubeconfig":"/etc/kubeconfig"}`,
		`"kubernetes":{"kubeconfig":"__KUBECONFIG_FILEPATH__"}`, `"kubernetes":{"kubeconfig":7}`, `"agent":"require","kubernetes":{"kubeconfig":"/etc/kubeconfig"}`, `"kubernetes":{"exclude_namespaces":"a"}`,
		`"kubernetes":{"exclude_namespaces":["a",""]}`, `"kubernetes":{"exclude_namespaces":[7]}`, `"kubernetes":{"exclude_namespace_selector":"a in b"}`, `"kubernetes":{"exclude_namespace_selector":"a in (b)"}`,
		`"kubernetes":{"cni_bin_dir":false}`, `"nobody's":7`,
	} {
		template := `{"type": "meshcni", ` + keys + `}`
		all = append(all, set("pluginConfig", template), set("extraEnv", []values{{"name": "CNI_NETWORK_CONFIG", "value": template}}))
	}
	for _, flag := range []string{
		"dialect=nope", "dialect=istio, kuma", "dialect=", "add-deadline=0s", "add-deadline=10ms", "add-deadline=2s", "backend=ebpf", "backend=", "backend=iptables", "agent=no", "agent=off", "log-level=loud",
		"log-level=Info", "uncaptured-family=deny", "repair=fix", "repair=label", "token-lifetime=1m", "token-lifetime=1h", "ambient-drain-timeout=x", "ambient-drain-timeout=0", "own-file=perhaps",
		"own-file=1", "uninstall-on-exit=yes", "refuse-net-raw=yes", "refuse-net-raw=T", "service-account-dir=run", "exclude-namespace-selector=a in b", "exclude-namespace-selector=", "write-status", "backend",
		"kubernetes-service-protocol=tcp", "exclude-namespaces=a,b",
	} {
		all = append(all, set("extraArgs", []string{"--" + flag}))
		if name, value, ok := strings.Cut(flag, "="); ok {
			all = append(all, set("extraEnv", []values{{"name": "MESHCNI_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_")), "value": value}}))
		}
	}
	m := newMachine(t, mustRender(t, nil))
	var taken []values
	for _, v := range all {
		err := m.tries(v)
		if err == nil {
			taken = append(taken, v)
			continue
		}
		t.Run("", func(t *testing.T) {
			t.Parallel()
			_, refused := render(t, v)
			assert.ErrorContains(t, refused, "these values cannot work", "%v: the agent: %v", v, err)
		})
	}
	_, err := tryRenderAll(t, taken)
	require.NoError(t, err)
}

// tries has the agent judge a template of the entry, an extra argument or an extra variable.
func (m *machine) tries(v values) error {
	args, env := append([]string{"run"}, m.args()...), m.env
	switch {
	case v["pluginConfig"] != nil:
		m.write("/etc/meshcni/plugin.json", v["pluginConfig"].(string))
		args = append(args, "--plugin-config="+m.path("/etc/meshcni/plugin.json"))
	case v["extraArgs"] != nil:
		args = append(args, v["extraArgs"].([]string)...)
	default:
		more := v["extraEnv"].([]values)[0]
		env = func(name string) (string, bool) {
			if name == more["name"] {
				return more["value"].(string), true
			}
			return m.env(name)
		}
		args = slices.DeleteFunc(args, func(arg string) bool { // the variable is for what no flag says
			name, _, _ := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
			return "MESHCNI_"+strings.ToUpper(strings.ReplaceAll(name, "-", "_")) == more["name"]
		})
	}
	// The directories of a machine are temporary ones, and the chart's are the node's.
	_, err := nodecmd.Program{Env: env}.Parse(append(args, "--run-dir=/var/run/meshcni"))
	return err
}

// TestTheChartKnowsTheFlags: extraArgs may be any flag that there is.
func TestTheChartKnowsTheFlags(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	require.Equal(t, 0, nodecmd.Program{Stdout: &out}.Main(t.Context(), []string{"run", "--help"}))
	want := map[string]bool{}
	for _, found := range regexp.MustCompile(`(?m)^  (?:-[a-z], )?--([a-z0-9-]+)`).FindAllStringSubmatch(out.String(), -1) {
		want[found[1]] = true
	}
	require.True(t, want["config"])
	_, after, ok := strings.Cut(readAll(t, chart)["templates/_validate.tpl"], "{{- define \"meshcni.flags\" -}}\n")
	require.True(t, ok)
	line, _, _ := strings.Cut(after, "\n")
	assert.ElementsMatch(t, slices.Sorted(maps.Keys(want)), strings.Fields(line))
}
