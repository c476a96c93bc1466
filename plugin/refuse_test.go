package plugin_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/testing/apiservertest"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/plugin"
	"github.com/meshcni/meshcni/plugin/kubepod"
	"github.com/meshcni/meshcni/plugin/netconf"
	"github.com/meshcni/meshcni/plugin/plugintest"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// TestWhatIsRefused has everything that keeps a pod of the mesh from starting. In each case nothing may have been
// applied, and the answer is an error with its code.
func TestWhatIsRefused(t *testing.T) {
	t.Parallel()
	config := func(key string, value any) func(*call) { return func(c *call) { c.config[key] = value } }
	inKubernetes := func(key string, value any) func(*call) { return config("kubernetes", object{key: value}) }
	stdin := func(s string) func(*call) { return func(c *call) { c.stdin = s } }
	env := func(key, value string) func(*call) { return func(c *call) { c.env[key] = value } }
	prev := func(v any) func(*call) { return config("prevResult", v) }
	annotate := func(kv ...string) func(*call) {
		return func(c *call) {
			pod(c, func(p *corev1.Pod) {
				for i := 0; i < len(kv); i += 2 {
					p.Annotations[kv[i]] = kv[i+1]
				}
			})
		}
	}
	cases := map[string]struct {
		change   func(*call)
		code     int
		contains []string
	}{
		// Environment.
		"unknown verb":         {env("CNI_COMMAND", "UPDATE"), 4, []string{"CNI_COMMAND", "UPDATE"}},
		"lower-case verb":      {env("CNI_COMMAND", "add"), 4, []string{"CNI_COMMAND"}},
		"no container ID":      {env("CNI_CONTAINERID", ""), 4, []string{"CNI_CONTAINERID is missing"}},
		"no netns":             {env("CNI_NETNS", ""), 4, []string{"CNI_NETNS is missing"}},
		"no interface":         {env("CNI_IFNAME", ""), 4, []string{"CNI_IFNAME is missing"}},
		"nothing at all":       {func(c *call) { c.env = map[string]string{"CNI_COMMAND": "ADD"} }, 4, []string{"CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"}},
		"container ID":         {env("CNI_CONTAINERID", "../x"), 4, []string{`CNI_CONTAINERID "../x"`}},
		"interface with slash": {env("CNI_IFNAME", "a/b"), 4, []string{`CNI_IFNAME "a/b"`}},
		"interface too long":   {env("CNI_IFNAME", "abcdefghijklmnop"), 4, []string{"CNI_IFNAME"}},
		"args without value":   {env("CNI_ARGS", "K8S_POD_NAME"), 4, []string{"CNI_ARGS", "K8S_POD_NAME"}},
		"a name with a path":   {env("CNI_ARGS", args("shop", "../secrets/x", "")), 4, []string{"CNI_ARGS", "K8S_POD_NAME"}},

		// Configuration.
		"empty stdin":                          {stdin(" "), 6, []string{"decode network configuration"}},
		"malformed stdin":                      {stdin(`{"cniVersion":"1.0.0",`), 6, []string{"decode"}},
		"two documents":                        {stdin(`{"cniVersion":"1.0.0","name":"n"}{}`), 6, []string{"decode"}},
		"a list":                               {stdin(`[]`), 6, []string{"JSON object"}},
		"null":                                 {stdin(`null`), 6, []string{"JSON object"}},
		"no network name":                      {config("name", ""), 7, []string{"name"}},
		"network name":                         {config("name", "a b"), 7, []string{`name "a b"`}},
		"name of wrong type":                   {config("name", 7), 7, []string{"name: want a string, not 7"}},
		"no version":                           {config("cniVersion", ""), 1, []string{`config is "0.1.0"`, "0.3.1"}},
		"old version":                          {config("cniVersion", "0.2.0"), 1, []string{`config is "0.2.0"`}},
		"future version":                       {config("cniVersion", "2.0.0"), 1, []string{`config is "2.0.0"`}},
		"version not a text":                   {config("cniVersion", 1.0), 7, []string{"cniVersion: want a string"}},
		"unknown dialect":                      {config("dialect", "osm"), 7, []string{`unknown dialect "osm"`, "istio"}},
		"unknown dialect, also for who passes": {both(config("dialect", "osm"), env("CNI_ARGS", "")), 7, []string{`"osm"`}},
		"dialect's type":                       {config("dialect", object{"name": "istio"}), 7, []string{"dialect: want a string or a list of strings"}},
		"no dialect in the list":               {config("dialect", []string{}), 7, []string{"dialect: the list is empty"}},
		"all that is wrong with the dialects": {
			both(config("dialect", []string{"osm", "istio", "", "istio", "nginx"}), inKubernetes("exclude_namespace_selector", "a=b=c")), 7,
			[]string{`unknown dialect "osm"`, `unknown dialect "nginx"`, `dialect: "istio" is named twice`, "dialect: a name is empty", `"a=b=c"`},
		},
		"unknown backend":              {config("backend", "ipvs"), 7, []string{`backend "ipvs"`, "iptables-nft"}},
		"unknown log level":            {config("log_level", "loud"), 7, []string{`"loud"`}},
		"no duration":                  {config("add_deadline", "soon"), 7, []string{"add_deadline", "soon"}},
		"a bare number":                {config("add_deadline", 30), 7, []string{"add_deadline: want a string, not 30"}},
		"no time at all":               {config("add_deadline", "0s"), 7, []string{"add_deadline", "above 0"}},
		"uncaptured family":            {config("uncaptured_family", "maybe"), 7, []string{"uncaptured_family", "allow, drop"}},
		"run_dir's type":               {config("run_dir", true), 7, []string{"run_dir: want a string, not true"}},
		"kubernetes' type":             {config("kubernetes", "yes"), 7, []string{"kubernetes: want an object"}},
		"kubeconfig's type":            {inKubernetes("kubeconfig", 1), 7, []string{"kubernetes.kubeconfig: want a string"}},
		"excluded as text":             {inKubernetes("exclude_namespaces", "a,b"), 7, []string{"kubernetes.exclude_namespaces: want a list of strings"}},
		"excluded labels":              {inKubernetes("exclude_namespace_selector", "mesh in (off"), 7, []string{`kubernetes.exclude_namespace_selector: label selector "mesh in (off"`}},
		"excluded labels that are all": {inKubernetes("exclude_namespace_selector", " "), 7, []string{"exclude_namespace_selector", "requires nothing"}},
		"excluded labels' type":        {inKubernetes("exclude_namespace_selector", []string{"a=b"}), 7, []string{"kubernetes.exclude_namespace_selector: want a string"}},
		"excluded labels without end":  {inKubernetes("exclude_namespace_selector", strings.Repeat("a,", 3000)+"a"), 7, []string{"6001 bytes", "at most 4096"}},
		"excluded labels and dialect":  {both(config("dialect", "osm"), inKubernetes("exclude_namespace_selector", "a=b=c")), 7, []string{`"osm"`, `"a=b=c"`}},
		"annotations' type":            {config("runtimeConfig", object{netconf.AnnotationsCapability: []string{"a"}}), 7, []string{netconf.AnnotationsCapability}},
		"runtimeConfig":                {config("runtimeConfig", 1), 7, []string{"runtimeConfig: want an object"}},
		"everything wrong at once": {
			both(config("backend", 1), config("log_level", 2), config("kubernetes", object{"kubeconfig": 3, "cni_bin_dir": 4}), config("add_deadline", "x")), 7,
			[]string{"backend", "log_level", "kubernetes.kubeconfig", "kubernetes.cni_bin_dir", "add_deadline"},
		},
		"prevResult a text":        {prev("x"), 7, []string{"prevResult"}},
		"prevResult's ips":         {prev(object{"ips": 5}), 7, []string{"prevResult", "ips"}},
		"prevResult's address":     {prev(object{"ips": []object{{"address": "10.0.0.1"}, {"address": "x/24"}}}), 7, []string{"ips[0].address", "ips[1].address", "prefix length"}},
		"prevResult's version":     {prev(object{"cniVersion": "7.0.0"}), 7, []string{"prevResult", "7.0.0"}},
		"prevResult won't convert": {prev(object{"cniVersion": "0.4.0", "routes": "none"}), 7, []string{"convert prevResult"}},

		// The namespace.
		"netns is the host's": {func(c *call) { c.netns.OpenErr = fmt.Errorf("open x: %w", netnsexec.ErrHost) }, 8, []string{"CNI_NETNS", "host"}},
		"netns is no netns":   {func(c *call) { c.netns.OpenErr = netnsexec.ErrNotNetNS }, 8, []string{"CNI_NETNS", "not a network namespace"}},
		"netns is gone":       {func(c *call) { c.netns.OpenErr = netnsexec.ErrGone }, 8, []string{"CNI_NETNS", "gone"}},
		"families unknown":    {func(c *call) { c.netns.KernelErr = errors.New("sysctl") }, 101, []string{"network namespace of pod shop/cart-0", "sysctl"}},
		"addresses unknown":   {both(func(c *call) { delete(c.config, "prevResult") }, func(c *call) { c.netns.AddrsErr = errors.New("netlink") }), 999, []string{"read addresses", "netlink"}},

		// The pod. Deadlines that are to pass are short.
		"no source of pods": {func(c *call) { c.plugin.OpenPods = nil }, 50, []string{"source of pods"}},
		"missing kubeconfig": {func(c *call) {
			c.config["kubernetes"] = object{"kubeconfig": "/no/such/kubeconfig"}
			c.plugin.OpenPods = kubepod.Open
		}, 50, []string{"/no/such/kubeconfig", "no such file", "agent"}},
		"pod deleted meanwhile": {both(config("add_deadline", "1s"), func(c *call) { c.pods = plugintest.NewPods(); c.plugin.OpenPods = c.pods.Open }), 11, []string{`"cart-0" not found`, "1s"}},
		"token no longer good": {both(config("add_deadline", "1s"), func(c *call) {
			c.pods.Hook = func(context.Context, int) error { return apierrors.NewUnauthorized("Unauthorized") }
		}), 11, []string{"Unauthorized", "agent", "is it running?"}},
		"another UID": {both(config("add_deadline", "1s"), env("CNI_ARGS", args("shop", "cart-0", "another"))), 11, []string{podUID, "another", "same name"}},
		"a mirror that says it is a pod of the API server": {
			both(config("add_deadline", "1s"), annotate("kubernetes.io/config.mirror", "0b9d4c1e-1111-4222-8333-444455556666"),
				env("CNI_ARGS", args("shop", "cart-0", "0b9d4c1e-1111-4222-8333-444455556666"))), 11, []string{"0b9d4c1e-1111-4222-8333-444455556666", "remove metadata.uid"},
		},
		"a mirror of another pod": {both(config("add_deadline", "1s"), annotate("kubernetes.io/config.mirror", "x"), env("CNI_ARGS", args("shop", "cart-0", "another"))), 11, []string{"same name"}},
		"hopeless": {func(c *call) {
			c.pods.Permanent = true
			c.pods.Hook = func(context.Context, int) error { return errors.New("never") }
		}, 999, []string{"never"}},
		"a source that gives nothing": {both(config("add_deadline", "1s"), func(c *call) {
			c.plugin.OpenPods = func(string) (plugin.Pods, error) { return nothing, nil }
		}), 11, []string{"gave none"}},
		"a source that reads no pods": {func(c *call) {
			c.plugin.OpenPods = func(string) (plugin.Pods, error) { return plugin.Pods{}, nil }
		}, 999, []string{"cannot read pods"}},
		"a dialect that needs more than the source has": {func(c *call) {
			c.plugin.Dialects = []dialect.Dialect{toy()}
			c.plugin.OpenPods = func(string) (plugin.Pods, error) { return nothing, nil }
		}, 999, []string{"namespace"}},
		"every bad annotation at once": {annotate(
			"sidecar.istio.io/interceptionMode", "MAGIC",
			"traffic.sidecar.istio.io/includeInboundPorts", "80,",
			"traffic.sidecar.istio.io/excludeOutboundPorts", "1-2",
			"traffic.sidecar.istio.io/excludeOutboundIPRanges", "10.0.0.1",
			"traffic.sidecar.istio.io/excludeInterfaces", "-j",
		), 7, []string{
			"shop/cart-0",
			"interceptionMode", "MAGIC", "includeInboundPorts", "80,", "excludeOutboundPorts", "1-2", "excludeOutboundIPRanges", "10.0.0.1", "excludeInterfaces", "-j",
		}},

		// The rules.
		"no backend":      {func(c *call) { c.netns.BackendErr = fmt.Errorf("iptables: %w", apply.ErrNoBackend) }, 50, []string{"no usable firewall backend"}},
		"backend unclear": {func(c *call) { c.netns.BackendErr = errors.New("netlink") }, 101, []string{"choose firewall backend"}},
		"a family fails": {func(c *call) {
			c.netns.ApplyErr = errors.New("apply ipv6 rules: exit status 2")
		}, 101, []string{"apply ipv6 rules", "exit status 2"}},
		"no time to apply": {both(config("add_deadline", "60ms"), func(c *call) { c.netns.Applying = func(ctx context.Context) { <-ctx.Done() } }), 11, []string{"apply rules"}},
		"failed as it ended": {both(config("add_deadline", "60ms"), func(c *call) {
			c.netns.Applying, c.netns.ApplyErr = func(ctx context.Context) { <-ctx.Done() }, errors.New("signal: killed")
		}), 11, []string{"add_deadline", "signal: killed"}},

		// The plugin itself.
		"a panic":              {func(c *call) { c.plugin.OpenNetNS = func(string) (plugin.NetNS, error) { panic("ouch") } }, 999, []string{"meshcni: internal error: ouch"}},
		"a panic of a pod":     {func(c *call) { c.pods.Hook = func(context.Context, int) error { panic("ouch") } }, 999, []string{"ouch"}},
		"a panic on the side":  {func(c *call) { c.plugin.OpenNetNS = func(string) (plugin.NetNS, error) { return panicking{}, nil } }, 999, []string{"ouch"}},
		"a panic in the netns": {func(c *call) { c.netns.ApplyErr = &netnsexec.PanicError{Value: "ouch", Stack: []byte("here")} }, 999, []string{"ouch"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCall()
			tc.change(c)
			out := c.run(t)
			out.fails(t, tc.code, tc.contains...)
			assert.Equal(t, ruleset.Ruleset{}, c.netns.Live)
			assert.Equal(t, c.netns.Opened, c.netns.Closed)
			r := out.record(t, "failed")
			assert.EqualValues(t, tc.code, r["code"])
			switch {
			case name == "every bad annotation at once":
				assert.Equal(t, "pod-refused", r["reason"])
			case r["verb"] == "ADD":
				assert.Equal(t, "add-failed", r["reason"])
			default:
				assert.Empty(t, r["reason"])
			}
			if out.failure.Code == 999 && assert.NotContains(t, out.stdout, "goroutine", "stacks go to the log") && r["stack"] != nil {
				assert.NotEmpty(t, r["stack"])
			}
		})
	}
}

var nothing = plugin.Pods{Pod: func(context.Context, string, string) (*corev1.Pod, error) { return nil, nil }}

type panicking struct{ plugin.NetNS }

func (panicking) Backend(context.Context, ruleset.Backend) (plugin.Backend, error) { panic("ouch") }
func (panicking) ID() netnsexec.ID                                                 { return netnsexec.ID{Dev: 1, Ino: 1} }
func (panicking) Close() error                                                     { return nil }

func TestErrorsAreInTheAskedVersion(t *testing.T) {
	t.Parallel()
	for asked, want := range map[string]string{"0.3.1": "0.3.1", "1.0.0": "1.0.0", "9.9.9": "1.1.0"} {
		c := newCall()
		c.config = set(c.config, "cniVersion", asked, "dialect", "osm")
		assert.Equal(t, want, c.run(t).failure.CNIVersion)
	}
}

func TestCheckSaysWhatDiffers(t *testing.T) {
	t.Parallel()
	c := newCall()
	require.Zero(t, c.run(t).exit)
	c.env["CNI_COMMAND"] = "CHECK"
	out := c.run(t)
	require.Zero(t, out.exit, out.stdout)
	assert.Equal(t, "checked", out.record(t, "decision")["outcome"])

	c.netns.Live = ruleset.Ruleset{}
	out = c.run(t)
	out.fails(t, 100, "shop/cart-0", "ISTIO_OUTPUT", "missing")
	assert.Equal(t, "failed", out.record(t, "decision")["outcome"])
	for _, err := range []error{netnsexec.ErrGone, netnsexec.ErrHost, netnsexec.ErrNotNetNS} {
		c.netns.OpenErr = err
		c.run(t).fails(t, 8, "CNI_NETNS")
	}
}

func TestSecondAddLeavesTheSame(t *testing.T) {
	t.Parallel()
	c := newCall()
	require.Zero(t, c.run(t).exit)
	before := c.netns.Live.String()
	out := c.run(t)
	assert.Equal(t, "same", out.record(t, "decision")["outcome"])
	assert.Equal(t, before, c.netns.Live.String())
}

// TestAPIServer is the pod's way through TLS and HTTP, with the failures that an API server shows.
func TestAPIServer(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		deadline string
		spoil    func(*apiservertest.APIServer)
		code     int
		contains string
		calls    int // 0: several
	}{
		"well":              {"30s", func(*apiservertest.APIServer) {}, 0, "", 1},
		"403 for a while":   {"30s", hook(apiservertest.First(2, apiservertest.Answer(http.StatusForbidden))), 0, "", 3},
		"404 for a while":   {"30s", hook(apiservertest.First(1, apiservertest.Answer(http.StatusNotFound))), 0, "", 2},
		"garbage once":      {"30s", hook(apiservertest.First(1, apiservertest.Body("text/html", []byte("<html>")))), 0, "", 2},
		"hung up once":      {"30s", hook(apiservertest.First(1, apiservertest.HangUp())), 0, "", 2},
		"truncated once":    {"30s", hook(apiservertest.First(1, apiservertest.Truncate())), 0, "", 2},
		"busy once":         {"2s", hook(apiservertest.First(1, apiservertest.Answer(http.StatusServiceUnavailable))), 0, "", 2},
		"403 for ever":      {"5s", hook(apiservertest.Answer(http.StatusForbidden)), 11, "403 as asked", 0},
		"500 for ever":      {"5s", hook(apiservertest.Answer(http.StatusInternalServerError)), 11, "500 as asked", 0},
		"garbage for ever":  {"5s", hook(apiservertest.Body("application/json", []byte("}"))), 11, "response is no Pod", 0},
		"too slow":          {"200ms", hook(apiservertest.Hang()), 11, "deadline", 1},
		"down":              {"5s", func(s *apiservertest.APIServer) { s.Close() }, 11, "refused", 0},
		"a request refused": {"30s", hook(apiservertest.Answer(http.StatusBadRequest)), 999, "400 as asked", 1},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := apiservertest.NewAPIServer(t)
			server.SetPod(meshPod())
			tc.spoil(server)
			c := withServer(t, server)
			c.config["add_deadline"] = tc.deadline
			out := c.run(t)
			if tc.code == 0 {
				assert.Zero(t, out.exit, out.stdout)
				assert.NotNil(t, c.netns.Live.IPv4)
			} else {
				out.fails(t, tc.code, tc.contains)
				assert.Equal(t, ruleset.Ruleset{}, c.netns.Live)
			}
			if tc.calls > 0 {
				assert.Len(t, server.Requests(), tc.calls)
			}
		})
	}
}

func hook(h apiservertest.Hook) func(*apiservertest.APIServer) {
	return func(s *apiservertest.APIServer) { s.Handle(h) }
}

func withServer(t testing.TB, server *apiservertest.APIServer) *call {
	kubeconfig, err := server.WriteKubeconfig(t.TempDir())
	require.NoError(t, err)
	c := newCall()
	c.config["kubernetes"] = object{"kubeconfig": kubeconfig}
	c.plugin.OpenPods = kubepod.Open
	return c
}

func TestRotatedTokenIsReadAgain(t *testing.T) {
	t.Parallel()
	server := apiservertest.NewAPIServer(t)
	server.SetPod(meshPod())
	dir := t.TempDir()
	kubeconfig, err := server.WriteKubeconfig(dir)
	require.NoError(t, err)
	server.SetToken("rotated")
	server.Handle(func(n int, _ http.ResponseWriter, _ *http.Request) bool {
		if n == 1 {
			_, err := server.WriteKubeconfig(dir)
			assert.NoError(t, err)
		}
		return false
	})
	c := withServer(t, server)
	c.config["kubernetes"] = object{"kubeconfig": kubeconfig}
	// withServer wrote another file, with the new token; this one is old until the first request.
	out := c.run(t)
	assert.Zero(t, out.exit, out.stdout)
	assert.Len(t, server.Requests(), 2)
}

func TestPodIsRecreatedMeanwhile(t *testing.T) {
	t.Parallel()
	c := newCall()
	pod(c, func(p *corev1.Pod) { p.UID = "old" })
	c.pods.Hook = func(_ context.Context, n int) error {
		if n == 3 {
			c.pods.Set(meshPod())
		}
		return nil
	}
	out := c.run(t)
	assert.Zero(t, out.exit, out.stdout)
	assert.Equal(t, 3, c.pods.Calls())
}

func TestInterruptedWhileWaiting(t *testing.T) {
	t.Parallel()
	c := newCall()
	ctx, cancel := context.WithCancel(t.Context())
	c.pods.Hook = func(context.Context, int) error { cancel(); return errors.New("down") }
	c.runContext(t, ctx).fails(t, 11, "interrupted", "down")
}

// TestRefusedNamesAreNotRecorded: what CNI_ARGS must not have as a name does not get into the fields of records.
func TestRefusedNamesAreNotRecorded(t *testing.T) {
	t.Parallel()
	c := newCall()
	c.env["CNI_ARGS"] = args("shop", "../secrets/x", "")
	events := 0
	c.plugin.OnEvent = func(_ context.Context, e plugin.Event) {
		events++
		assert.Zero(t, e.Pod)
		assert.NotNil(t, e.Err)
	}
	c.run(t).fails(t, 4, "K8S_POD_NAME")
	assert.Equal(t, 1, events)
}
