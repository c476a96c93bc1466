package runtime

import (
	"context"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/meshcni/meshcni/e2e/internal/containerd"
	"github.com/meshcni/meshcni/e2e/internal/crio"
	"github.com/meshcni/meshcni/e2e/internal/image"
	"github.com/meshcni/meshcni/internal/testing/longtest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// table has every test, and what it shows. Each runs on each runtime, but where it says why not.
var table = []struct {
	name string
	test func(*testing.T, kind)
	// calls marks what depends on the calls of the plugin, which follow the version of the CNI specification: it runs with
	// each version that the runtime knows.
	calls bool
	// without are runtimes that it does not run on, with the reason.
	without map[string]string
}{
	{name: "Sandbox", test: testSandbox},
	{name: "Calls", test: testCalls, calls: true},
	{name: "Restart", test: testRestart, calls: true},
	{name: "Capture", test: testCapture},
	{name: "Transparent", test: testTransparent},
	{name: "UserNamespace", test: testUserNamespace},
	{name: "UserNamespaceByIptables", test: testUserNamespaceByIptables},
	{name: "Refuse", test: testRefuse},
	{name: "Outage", test: testOutage},
	{name: "Removal", test: testRemoval, calls: true},
	{name: "AgentRestart", test: testAgentRestart},
	{name: "Uninstall", test: testUninstall, calls: true},
	{name: "Reboot", test: testReboot},
	{name: "Hook", test: testHook},
	{name: "Preinstalled", test: testPreinstalled},
	{name: "Boots", test: testBoots},
	{name: "Hundred", test: testHundred, without: map[string]string{crioName: "the test reads containerd's own histogram"}},
}

// TestContainerd is the table on containerd.
func TestContainerd(t *testing.T) {
	version, err := pluginsVersion(containerd.Plugins)
	if err != nil {
		version = "none" // newNode says what is missing
	}
	onKind(t, kind{name: containerdName, need: containerd.Need, version: version, plugins: containerd.Plugins, hook: containerd.NRI(), start: startContainerd}, false)
}

// TestCRIO is the table on CRI-O, with networks of CNI 1.1.0, and what depends on that with 1.0.0 too.
func TestCRIO(t *testing.T) {
	k := kind{name: crioName, need: crio.Need, version: "1.1.0", plugins: crio.Plugins, checks: true, collects: true, users: true, hook: true, start: startCRIO}
	onKind(t, k, false)
	k.version, k.collects = "1.0.0", false
	t.Run(k.version, func(t *testing.T) { onKind(t, k, !longtest.On) })
}

func onKind(t *testing.T, k kind, callsOnly bool) {
	for _, c := range table {
		if _, not := c.without[k.name]; !not && (c.calls || !callsOnly) {
			t.Run(c.name, func(t *testing.T) { c.test(t, k) })
		}
	}
}

// some is longtest.Of for a kind of runtime: rules do not depend on that, so in CI CRI-O has only the first of the few.
func some[T any](k kind, few []T, rest ...T) []T {
	if k.name == crioName && !longtest.On {
		return few[:1]
	}
	return longtest.Of(few, rest...)
}

const (
	containerdName = "containerd"
	crioName       = "CRI-O"
)

// kind is a runtime, and how it calls the network's plugins.
type kind struct {
	name string
	need netnstest.Need
	// version is that of the networks' CNI specification, and plugins the directory of the reference plugins.
	version, plugins string
	// checks: it calls CHECK after each ADD, and for each sandbox when it starts.
	checks bool
	// collects: it calls STATUS and GC when it starts.
	collects bool
	// users: it gives pods user namespaces of their own, in each version that the tests run it in.
	users bool
	// hook: it has a hook of its own, NRI.
	hook  bool
	start func() (containerRuntime, error)
}

// containerRuntime is what the tests need of a runtime.
type containerRuntime interface {
	cri.RuntimeServiceClient
	// Kill kills the daemon, and Boot starts it again. Containers keep running.
	Kill()
	Boot() error
	// Log is the daemon's log, of all its runs.
	Log() string
	// NetworkReady says what keeps pods with a network of their own from starting.
	NetworkReady(context.Context) error
	// UserNamespaces reports whether pods can have user namespaces of their own.
	UserNamespaces(context.Context) (bool, error)
	// Networks are the network configurations that it has loaded. It follows its directory with a delay.
	Networks(context.Context) (string, error)
}

// metricsAddress is where containerd tells how long its calls of plugins took.
const metricsAddress = "127.0.0.1:1338"

func startContainerd() (containerRuntime, error) {
	return containerd.Start(containerd.Options{
		Pause: image.Pause, Images: []string{image.ToolArchive(), image.OursArchive()}, Metrics: metricsAddress,
	})
}

func startCRIO() (containerRuntime, error) {
	return crio.Start(crio.Options{
		Pause: image.Pause,
		Images: []crio.Image{
			{Archive: image.ToolArchive(), Name: image.Pause}, {Archive: image.ToolArchive(), Name: image.Tool}, {Archive: image.OursArchive(), Name: image.Ours},
		},
	})
}
