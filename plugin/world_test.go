package plugin_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"github.com/meshcni/meshcni/dialect/builtin"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"net/netip"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/internal/node/attachment"
	"github.com/meshcni/meshcni/plugin"
	"github.com/meshcni/meshcni/plugin/netconf"
	"github.com/meshcni/meshcni/plugin/plugintest"
)

const podUID = "7f3c0a52-0000-4000-8000-000000000001"

// staticUID is one that a kubelet made.
const staticUID = "0f343b0931126a20f133d67c2b018a3b"

// meshPod is a pod that the default dialect selects.
func meshPod() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: "cart-0", UID: podUID,
			Annotations: map[string]string{"sidecar.istio.io/status": "{}"},
		},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "app"}, {Name: "istio-proxy", Args: []string{"proxy", "sidecar"}}}},
	}
}

type object = map[string]any

// call is one run of the plugin, prepared: a good ADD of a pod of the mesh, until a test changes it.
type call struct {
	env    map[string]string
	config object
	stdin  string // instead of config
	pods   *plugintest.Pods
	agent  *plugintest.Agent // there is none until Err is nil
	netns  *plugintest.NetNS
	plugin plugin.Plugin
	io     plugin.IO
}

// runs counts the run directories that calls were given.
var runs atomic.Int64

func newCall() *call {
	c := &call{
		env: map[string]string{
			"CNI_COMMAND":     "ADD",
			"CNI_CONTAINERID": "c0ffee",
			"CNI_NETNS":       "/var/run/netns/cni-1",
			"CNI_IFNAME":      "eth0",
			"CNI_PATH":        "/opt/cni/bin",
			"CNI_ARGS":        "K8S_POD_UID=" + podUID + ";IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=cart-0;K8S_POD_INFRA_CONTAINER_ID=c0ffee",
		},
		config: object{
			"cniVersion": "1.0.0", "name": "k8s-pod-network", "type": "meshcni", "log_level": "debug",
			"add_deadline": "30s",
			"kubernetes":   object{"exclude_namespaces": []string{"kube-system"}},
			"prevResult": object{
				"cniVersion": "1.0.0",
				"interfaces": []object{{"name": "veth1"}, {"name": "eth0", "sandbox": "/var/run/netns/cni-1"}},
				"ips":        []object{{"address": "10.244.1.5/24", "interface": 1}},
			},
		},
		pods:  plugintest.NewPods(meshPod()),
		agent: &plugintest.Agent{Err: fs.ErrNotExist},
		netns: &plugintest.NetNS{},
	}
	c.plugin = plugin.Plugin{
		Dialects:  builtin.All(),
		OpenPods:  c.pods.Open,
		OpenAgent: c.agent.Open,
		OpenNetNS: c.netns.Open,
		OpenLog:   logTo,
	}
	records := attachment.Open(filepath.Join(programs, fmt.Sprint("run-", runs.Add(1))))
	c.plugin.Attachments = func(netconf.Config) attachment.Store { return records }
	return c
}

func logTo(c netconf.Config, w io.Writer) (*slog.Logger, io.Closer) {
	return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: c.LogLevel.Level()})), io.NopCloser(nil)
}

type outcome struct {
	exit           int
	stdout, stderr string
	failure        *failure // what is on stdout when exit is 1
	records        []object
}

type failure struct {
	CNIVersion string
	Code       int
	Msg        string
	Details    string
}

func (c *call) run(t testing.TB) outcome { return c.runContext(t, t.Context()) }

func (c *call) runContext(t testing.TB, ctx context.Context) outcome {
	t.Helper()
	text := c.stdin
	if text == "" {
		b, err := json.Marshal(c.config)
		require.NoError(t, err)
		text = string(b)
	}
	var stdout, stderr bytes.Buffer
	o := plugin.IO{
		Args:   []string{"/opt/cni/bin/meshcni"},
		Getenv: func(k string) string { return c.env[k] },
		Stdin:  strings.NewReader(text), Stdout: &stdout, Stderr: &stderr,
	}
	if c.io.Args != nil {
		o.Args = c.io.Args
	}
	if c.io.Stdin != nil {
		o.Stdin = c.io.Stdin
	}
	if c.io.Stdout != nil {
		o.Stdout = c.io.Stdout
	}
	out := outcome{exit: c.plugin.Run(ctx, o), stdout: stdout.String(), stderr: stderr.String()}
	if out.exit != 0 && c.io.Stdout == nil {
		out.failure = &failure{}
		require.NoError(t, json.Unmarshal(stdout.Bytes(), out.failure), "stdout is no error: %s", out.stdout)
	}
	for line := range strings.Lines(out.stderr) {
		var r object
		if json.Unmarshal([]byte(line), &r) == nil {
			out.records = append(out.records, r)
		}
	}
	return out
}

// record returns the only record with the message.
func (o outcome) record(t testing.TB, msg string) object {
	t.Helper()
	var found []object
	for _, r := range o.records {
		if r["msg"] == msg {
			found = append(found, r)
		}
	}
	require.Len(t, found, 1, "records with msg %q in:\n%s", msg, o.stderr)
	return found[0]
}

func (o outcome) fails(t testing.TB, code int, contains ...string) {
	t.Helper()
	if assert.Equal(t, 1, o.exit, "exit code; stdout: %s", o.stdout) {
		assert.Equal(t, code, o.failure.Code, o.failure.Msg)
		assert.NotEmpty(t, o.failure.CNIVersion)
		for _, want := range contains {
			assert.Contains(t, o.failure.Msg+"\n"+o.failure.Details, want)
		}
	}
}

// set returns a copy of the object with changes; nil removes a key.
func set(o object, kv ...any) object {
	c := maps.Clone(o)
	for i := 0; i < len(kv); i += 2 {
		if kv[i+1] == nil {
			delete(c, kv[i].(string))
		} else {
			c[kv[i].(string)] = kv[i+1]
		}
	}
	return c
}

func addrs(s ...string) (a []netip.Addr) {
	for _, x := range s {
		a = append(a, netip.MustParseAddr(x))
	}
	return a
}
