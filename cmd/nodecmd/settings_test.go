//go:build linux

package nodecmd

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/istio"
	"github.com/meshcni/meshcni/dialect/kuma"
	"github.com/meshcni/meshcni/dialect/linkerd"
	"github.com/meshcni/meshcni/installer"
	"github.com/meshcni/meshcni/nodeagent"
	"github.com/meshcni/meshcni/plugin/netconf"
	"github.com/meshcni/meshcni/redirect"
)

func TestParse(t *testing.T) {
	s, err := parsed(map[string]string{
		"MESHCNI_DIALECT": "kuma", "POD_NAMESPACE": "mesh", "MESHCNI_UNCAPTURED_FAMILY": "drop", "MESHCNI_WRITE_STATUS": "true", "MESHCNI_DAEMONSET_NAME": "agent",
		"MESHCNI_REPAIR_NODE_BURST": "3",
	},
		"--cni-bin-dir=/a", "--cni-bin-dir=/b", "--metrics-address=", "--uninstall-on-exit", "--repair=delete", "--node-name=n",
	)
	require.NoError(t, err)
	p := Program{}
	p.setDefaults()
	want := p.defaults()
	want.CNIBinDirs, want.MetricsAddress, want.UninstallOnExit = []string{"/a", "/b"}, "", installer.SwitchOn
	want.Plugin.Dialects, want.Plugin.PodNamespace, want.Plugin.UncapturedFamily, want.Plugin.WriteStatus, want.DaemonSetName = netconf.Dialects{"kuma"}, "mesh", "drop", true, "agent"
	assert.Equal(t, 3, s.Repair.NodeBudget.Burst)
	assert.Equal(t, []string{"delete", "n"}, []string{string(s.Repair.Action), s.Node})
	assert.Equal(t, netconf.Config{Type: "meshcni", Dialects: netconf.Dialects{"kuma"}, Backend: "auto", UncapturedFamily: "drop", PodNamespace: "mesh", RunDir: s.RunDir}, s.Effective(), "as the plugin's")
	s.Repair, want.Node = want.Repair, "n"
	assert.Equal(t, want.Config, s)

	for value, exit := range map[string]installer.Switch{"auto": installer.SwitchAuto, "true": installer.SwitchOn, "1": installer.SwitchOn, "false": installer.SwitchOff, "0": installer.SwitchOff} {
		s, err := parsed(nil, "--uninstall-on-exit="+value)
		require.NoError(t, err)
		assert.Equal(t, exit, s.UninstallOnExit)
	}
	// Whichever of the two forms a value has, it is the same: the page shows some flags with a word, and some with a default alone.
	run, _, err := p.command().Find([]string{"run"})
	require.NoError(t, err)
	several := 0
	run.Flags().VisitAll(func(f *pflag.Flag) {
		for _, value := range []string{"true", "false", "auto"} {
			joined, err := Program{}.Parse([]string{"run", "--" + f.Name + "=" + value, "--node-name=n"})
			if err != nil || f.NoOptDefVal == "" {
				continue
			}
			several++
			apart, err := Program{}.Parse([]string{"run", "--" + f.Name, value, "--node-name", "n"})
			require.NoError(t, err, f.Name)
			assert.Equal(t, joined, apart, "--%s %s", f.Name, value)
		}
	})
	assert.Greater(t, several, 20)
	for says, args := range map[string][]string{
		"no command":                    {"--chained"},
		"fly":                           {"run", "--fly"},
		"now":                           {"run", "now"},
		`"sometimes" is not auto, true`: {"run", "--uninstall-on-exit=sometimes"},
		"--uncaptured-family":           {"run", "--uncaptured-family=forget"},
		"--add-deadline":                {"run", "--add-deadline=0s"},
		"--log-level":                   {"install", "--log-level=loud"},
		"--backend":                     {"uninstall", "--backend="},
		"daemonset-name":                {"run", "--uninstall-on-exit=auto", "--daemonset-name="},
		`exclude-namespace-selector: label selector "a=("`: {"install", "--exclude-namespace-selector=a=("},
		"refuse-proxy-uid": {"install", "--refuse-proxy-uid=perhaps"},
	} {
		_, err := Program{}.Parse(args)
		assert.ErrorContains(t, err, says, args)
	}
}

// Settings with their defaults leave the entry as it was before there were such.
func TestEntryOfPluginSettings(t *testing.T) {
	s, err := parsed(nil)
	require.NoError(t, err)
	entry, err := s.Entry()
	require.NoError(t, err)
	was, err := installer.Default(meshcni.Identity{}).Entry()
	require.NoError(t, err)
	assert.Equal(t, string(was), string(entry))
	for _, key := range []string{"uncaptured_family", "refuse_proxy_uid", "refuse_net_raw", "write_status", "ready_without_agent", "exclude_namespace_selector"} {
		assert.NotContains(t, string(entry), key)
	}
	s, err = parsed(nil, "--uncaptured-family=drop", "--refuse-proxy-uid", "--refuse-net-raw", "--write-status=true", "--ready-without-agent", "--exclude-namespace-selector=mesh in (off,no)")
	require.NoError(t, err)
	entry, err = s.Entry()
	require.NoError(t, err)
	for _, setting := range []string{`"uncaptured_family": "drop"`, `"refuse_proxy_uid": true`, `"refuse_net_raw": true`, `"write_status": true`, `"ready_without_agent": true`, `"exclude_namespace_selector": "mesh in (off,no)"`} {
		assert.Contains(t, string(entry), setting)
	}
}

// TestSeveralDialects: every form of a list means the same to the plugin's entry and to repair.
func TestSeveralDialects(t *testing.T) {
	dir := t.TempDir()
	file, mounted := filepath.Join(dir, "config.yaml"), filepath.Join(dir, "config")
	require.NoError(t, os.WriteFile(file, []byte("dialect: [linkerd, istio]\n"), 0o600))
	require.NoError(t, os.MkdirAll(mounted, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(mounted, "dialect"), []byte("linkerd,istio\n"), 0o600))
	for form, args := range map[string][]string{
		"flag": {"--dialect=linkerd,istio"}, "file": {"--config=" + file}, "directory": {"--config=" + mounted}, "variable": nil,
	} {
		var env map[string]string
		if args == nil {
			env = map[string]string{"MESHCNI_DIALECT": "linkerd, istio"}
		}
		s, err := parsed(env, append(args, "--repair=delete", "--node-name=n")...)
		require.NoError(t, err, form)
		assert.Equal(t, netconf.Dialects{"linkerd", "istio"}, s.Effective().Dialects, form)
		entry, err := s.Entry()
		require.NoError(t, err)
		read, _, err := netconf.Parse(entry, meshcni.Identity{})
		require.NoError(t, err)
		assert.Equal(t, netconf.Dialects{"linkerd", "istio"}, read.Dialects, form)
	}
	s, err := parsed(map[string]string{"CNI_NETWORK_CONFIG": `{"type": "meshcni", "dialect": ["kuma", "istio"]}`})
	require.NoError(t, err)
	assert.Equal(t, netconf.Dialects{"kuma", "istio"}, s.Effective().Dialects, "the template's")
	s, err = parsed(map[string]string{"CNI_NETWORK_CONFIG": `{"type": "meshcni"}`}, "--dialect=linkerd,istio")
	require.NoError(t, err)
	assert.Equal(t, netconf.Dialects{"linkerd", "istio"}, s.Effective().Dialects, "added to a template that has none")

	_, err = parsed(nil, "--dialect=ambient,istio", "--ambient", "--node-name=n")
	require.NoError(t, err, "an agent that serves the node's proxy")

	s, err = parsed(map[string]string{"MESHCNI_AMBIENT": "true", "NODE_NAME": "n"})
	require.NoError(t, err)
	assert.Equal(t, netconf.Dialects{"ambient", "istio"}, s.Plugin.Dialects, "the default with ambient")
	_, err = parsed(map[string]string{"MESHCNI_AMBIENT": "true", "NODE_NAME": "n"}, "--dialect=istio,linkerd")
	require.ErrorContains(t, err, "none of istio,linkerd has its proxy on the node: name one that has, as ambient,istio does")
	named := filepath.Join(t.TempDir(), "config.yaml")
	require.NoError(t, os.WriteFile(named, []byte("dialect: [linkerd, ambient]\n"), 0o600))
	for from, env := range map[string]map[string]string{"file": {"MESHCNI_CONFIG": named}, "variable": {"MESHCNI_DIALECT": "linkerd,ambient"}} {
		env["MESHCNI_AMBIENT"], env["NODE_NAME"] = "true", "n"
		s, err = parsed(env)
		require.NoError(t, err)
		assert.Equal(t, netconf.Dialects{"linkerd", "ambient"}, s.Plugin.Dialects, "named in a %s", from)
	}
	_, err = parsed(map[string]string{"MESHCNI_AMBIENT": "true", "NODE_NAME": "n", "MESHCNI_DIALECT": "istio"})
	require.ErrorContains(t, err, "none of istio has its proxy on the node")
	_, err = parsed(map[string]string{"MESHCNI_AMBIENT": "true", "NODE_NAME": "n"}, "--agent=off")
	require.ErrorContains(t, err, "agent=off does not go with ambient")
	_, err = parsed(map[string]string{"MESHCNI_AMBIENT": "true", "MESHCNI_ZDS_SOCKET": "run/x"})
	require.ErrorContains(t, err, "node-name (NODE_NAME) is not set")
	require.ErrorContains(t, err, `zds-socket "run/x": must be an absolute path of at most 107 bytes`)
}

// The agent of another plugin has that plugin's name in its help, installs the binary of that name unless told otherwise,
// and cannot repair pods of a mesh that does not say how they find out that they are broken.
func TestOwnPlugin(t *testing.T) {
	c := installer.Default(meshcni.Identity{})
	c.Plugin.Type = "acme-cni"
	var stdout output
	p := Program{Config: c, Dialects: []dialect.Dialect{{Name: "acme", Names: redirect.Default().Names, Build: dialect.FromSchema(redirect.Schema{Defaults: redirect.Default()})}}, Stdout: &stdout}
	assert.Equal(t, 0, p.Main(t.Context(), []string{"--help"}))
	assert.Contains(t, stdout.String(), "put the acme-cni plugin on this node")
	assert.NotContains(t, stdout.String(), "meshcni plugin")

	_, err := p.Parse([]string{"run", "--kubernetes-service-host=::1"})
	require.NoError(t, err)
	for _, action := range []string{"label", "delete", "repair"} {
		_, err = p.Parse([]string{"run", "--kubernetes-service-host=::1", "--node-name=n", "--repair=" + action})
		assert.ErrorContains(t, err, "--repair-init-container, --repair-exit-codes: dialect acme: repair criteria: no init container to look at")
	}
}

func TestVersion(t *testing.T) {
	for _, arg := range []string{"version", "--version", "-v"} {
		var stdout output
		assert.Equal(t, 0, Program{Identity: meshcni.Identity{Version: "v1.2.3 (x)"}, Stdout: &stdout}.Main(t.Context(), []string{arg}))
		assert.Equal(t, "meshcni-node v1.2.3 (x)\n", stdout.String())
	}
}

// TestDialectsOfTheProgram: the list that a program's Config names is the default of --dialect, with --ambient too.
func TestDialectsOfTheProgram(t *testing.T) {
	c := installer.Default(meshcni.Identity{})
	c.KubernetesHost = "::1"
	p := Program{Config: c, Dialects: []dialect.Dialect{kuma.New(), istio.New(), linkerd.New()}}
	resolved := func(names netconf.Dialects, args ...string) (netconf.Dialects, error) {
		p.Config.Plugin.Dialects = names
		s, err := p.Parse(append([]string{"run"}, args...))
		return s.Plugin.Dialects, err
	}
	for _, tt := range []struct {
		config, want netconf.Dialects
		args         []string
	}{
		{nil, netconf.Dialects{"kuma"}, nil},
		{c.Plugin.Dialects, netconf.Dialects{"kuma"}, nil}, // nobody has said anything
		{netconf.Dialects{"linkerd", "istio"}, netconf.Dialects{"linkerd", "istio"}, nil},
		{netconf.Dialects{"linkerd"}, netconf.Dialects{"linkerd"}, nil},
		{netconf.Dialects{"linkerd", "istio"}, netconf.Dialects{"kuma"}, []string{"--dialect=kuma"}},
	} {
		got, err := resolved(tt.config, tt.args...)
		require.NoError(t, err)
		assert.Equal(t, tt.want, got, "%v %v", tt.config, tt.args)
	}
	_, err := resolved(netconf.Dialects{"linkerd", "osm"})
	require.ErrorContains(t, err, `unknown dialect "osm"`)
	_, err = resolved(netconf.Dialects{"linkerd"}, "--ambient", "--node-name=n")
	require.ErrorContains(t, err, "none of linkerd has its proxy on the node")

	p.Config.Plugin.PrevResult = []byte("{}")
	_, err = resolved(nil)
	require.ErrorContains(t, err, "PrevResult")
}

// TestEvictingSettings: what somebody sets counts before what auto has by itself.
func TestEvictingSettings(t *testing.T) {
	t.Parallel()
	_, err := parsed(nil, "--repair=auto")
	require.ErrorContains(t, err, "repair=auto needs node-name")
	s, err := parsed(nil, "--repair=auto", "--node-name=n")
	require.NoError(t, err)
	assert.True(t, s.AutoEvict)
	assert.True(t, s.Repair.SpareUnmanaged, "nobody would make such a pod anew")
	assert.Equal(t, "none", string(s.Repair.Action), "until there is a proof")
	s, err = parsed(map[string]string{"MESHCNI_REPAIR_SPARE_UNMANAGED": "false"}, "--repair=auto", "--node-name=n")
	require.NoError(t, err)
	assert.False(t, s.Repair.SpareUnmanaged)
}

// TestFinerSettingsOfRepair come from the environment, also for pods without a check, which detection finds.
func TestFinerSettingsOfRepair(t *testing.T) {
	s, err := parsed(map[string]string{"MESHCNI_REPAIR_EXIT_CODES": "3,4", "MESHCNI_REPAIR_HOST_ROOT": "/host", "MESHCNI_REPAIR_PROC": "/host/proc", "MESHCNI_REPAIR_UNCAPTURED": "false"}, "--node-name=n")
	require.NoError(t, err)
	assert.Equal(t, []int32{3, 4}, s.Repair.Criteria["istio"].ExitCodes)
	assert.Equal(t, []string{"/host", "/host/proc"}, []string{s.HostRoot, s.ProcRoot})
	assert.False(t, s.Repair.Detect.Act)
	s, err = parsed(nil, "--node-name=n", "--dialect=consul")
	require.NoError(t, err)
	assert.Empty(t, s.Repair.Criteria["consul"].Containers, "its pods have no check")
	s, err = parsed(nil, "--detect=false")
	require.NoError(t, err)
	assert.Nil(t, s.Repair.Detect)
	_, err = parsed(map[string]string{"MESHCNI_REPAIR_EXIT_CODES": "0"})
	require.ErrorContains(t, err, "--repair-exit-codes")
}

// TestUnchangedSettingsAreEqual, so that nothing starts anew each time they are read.
func TestUnchangedSettingsAreEqual(t *testing.T) {
	read := func() nodeagent.Config {
		s, err := parsed(nil, "--ambient", "--dialect=ambient,istio,linkerd,kuma,consul", "--repair=delete", "--node-name=n", "--exclude-namespaces=a", "--exclude-namespace-selector=a=b")
		require.NoError(t, err)
		return s
	}
	assert.True(t, reflect.DeepEqual(read(), read()))
}

func TestOwnFileFlag(t *testing.T) {
	_, env := node(t)
	for args, want := range map[string]string{"": "auto", "--own-file": "true", "--own-file=false": "false", "--own-file=auto": "auto"} {
		s, err := parsed(env, strings.Fields(args)...)
		require.NoError(t, err)
		assert.Equal(t, want, string(s.OwnFile), args)
	}
	env["MESHCNI_OWN_FILE"] = "false"
	s, err := parsed(env)
	require.NoError(t, err)
	assert.Equal(t, "false", string(s.OwnFile))
	_, err = parsed(env, "--own-file=auto", "--cni-conf-name=00-meshcni.conflist")
	require.ErrorContains(t, err, "cni-conf-name")
}
