//go:build linux

package plugin_test

import (
	"context"
	"errors"
	"net/http"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/dialect/linkerd"
	"github.com/meshcni/meshcni/internal/testing/binarytest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/plugin"
	"github.com/meshcni/meshcni/plugin/netconf"
	"github.com/meshcni/meshcni/plugin/plugintest"
	"github.com/meshcni/meshcni/status"
)

// linkerdCall is an ADD of a pod that has Linkerd's proxy, with annotations by the runtime's word; nil: none known.
func linkerdCall(annotations map[string]string) *call {
	c := newCall()
	c.config["dialect"] = "linkerd"
	c.config["runtimeConfig"] = object{netconf.AnnotationsCapability: annotations}
	pod(c, func(p *corev1.Pod) {
		p.Annotations = annotations
		p.Spec.Containers = []corev1.Container{{Name: "app"}, {Name: "linkerd-proxy"}}
	})
	return c
}

// TestPodThatCannotBeRead: only one without any trace of the injector passes, and the record says why.
func TestPodThatCannotBeRead(t *testing.T) {
	t.Parallel()
	unreadable := map[string]func(*call){
		"no credentials": func(c *call) {
			c.plugin.OpenPods = func(string) (plugin.Pods, error) { return plugin.Pods{}, errors.New("read kubeconfig: no such file") }
		},
		"no API server": func(c *call) {
			c.pods.Hook = func(context.Context, int) error { return errors.New("connection refused") }
		},
		"no permission": func(c *call) {
			c.pods.Permanent = true
			c.pods.Hook = func(context.Context, int) error { return errors.New("forbidden") }
		},
	}
	for name, spoil := range unreadable {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, annotations := range []map[string]string{{}, {"app.example/owner": "storage"}, {"linkerd.io/inject": "disabled"}} {
				c := linkerdCall(annotations)
				spoil(c)
				out := c.run(t)
				require.Zero(t, out.exit, out.stdout)
				d := out.record(t, "decision")
				assert.EqualValues(t, status.CodeNotInjected, d["reason"])
				assert.Equal(t, "passed", d["outcome"])
				assert.Contains(t, d["detail"], linkerd.ProxyVersion)
				require.NotEmpty(t, d["warnings"])
				assert.Contains(t, d["warnings"].([]any)[0], "the pod could not be read, so its annotations decide: ")
				assert.LessOrEqual(t, c.pods.Calls(), 2, "it does not wait for the deadline")
				assert.Nil(t, c.netns.Live.IPv4)
				assert.Equal(t, c.netns.Opened, c.netns.Closed)
			}
			for _, annotations := range []map[string]string{
				nil, {linkerd.ProxyVersion: "edge-25.1.1"}, {linkerd.ProxyVersion: ""}, {"linkerd.io/created-by": "linkerd/cli stable-2.11.0"},
				{"linkerd.io/trust-root-sha256": "8dc603abd4e755c25c94da05abbf29b9b283a784733651020d72f97ca8ab98e4"}, {"linkerd.io/identity-mode": "default"},
			} {
				c := linkerdCall(annotations)
				c.config["add_deadline"] = "100ms"
				spoil(c)
				assert.NotZero(t, c.run(t).exit, "%v", annotations)
			}
		})
	}
}

// TestPodThatCanBeRead: with the API server there, containers decide, and an answer is an answer.
func TestPodThatCanBeRead(t *testing.T) {
	t.Parallel()
	once := linkerdCall(map[string]string{})
	once.pods.Hook = func(_ context.Context, n int) error {
		if n == 1 {
			return errors.New("hung up")
		}
		return nil
	}
	for name, c := range map[string]*call{"at once": linkerdCall(map[string]string{}), "at the second try": once} {
		out := c.run(t)
		require.Zero(t, out.exit, out.stdout)
		assert.Equal(t, "redirected", out.record(t, "decision")["outcome"], name)
		assert.NotNil(t, c.netns.Live.IPv4, name)
	}

	namespace := linkerdCall(map[string]string{})
	namespace.config["add_deadline"] = "100ms"
	namespace.pods.Hook = func(_ context.Context, n int) error {
		if n%2 == 0 {
			return errors.New("namespaces are not to be had")
		}
		return nil
	}
	namespace.run(t).fails(t, 11, "namespaces are not to be had")

	gone := linkerdCall(map[string]string{})
	gone.config["add_deadline"] = "100ms"
	gone.pods = &plugintest.Pods{}
	gone.plugin.OpenPods = gone.pods.Open
	gone.run(t).fails(t, 11, "not found")

	another := linkerdCall(map[string]string{})
	another.config["add_deadline"] = "100ms"
	pod(another, func(p *corev1.Pod) { p.UID = "another" })
	another.run(t).fails(t, 11, "another pod of the same name")

	interrupted := linkerdCall(map[string]string{})
	ctx, cancel := context.WithCancel(t.Context())
	interrupted.pods.Hook = func(context.Context, int) error { cancel(); return errors.New("down") }
	interrupted.runContext(t, ctx).fails(t, 11, "down")
}

// TestRecordedPodsAreNeverPresumedOut: each pod that Linkerd's injector made has what tells it.
func TestRecordedPodsAreNeverPresumedOut(t *testing.T) {
	files, err := filepath.Glob(fates + "/linkerd/cases/*.json")
	require.NoError(t, err)
	require.Len(t, files, 5)
	for _, file := range append(files, "../testdata/pods/linkerd.json") {
		var p corev1.Pod
		readJSON(t, file, &p)
		_, out := linkerd.New().Policy.PresumeOut(p.Annotations)
		assert.False(t, out, file)
		assert.Contains(t, p.Annotations, linkerd.ProxyVersion, file)
	}
}

// TestNodeWithoutCredentials runs the built program on a node whose agent is away.
func TestNodeWithoutCredentials(t *testing.T) {
	n := newNode(t, "iptables-nft")
	n.server.Handle(func(int, http.ResponseWriter, *http.Request) bool {
		t.Error("a request without credentials")
		return false
	})
	var meshed corev1.Pod
	readJSON(t, fates+"/linkerd/cases/sel-plain.json", &meshed)
	ns := netnstest.New(t)
	a := n.attach(&meshed, ns)
	config := set(a.Config.(object), "dialect", "linkerd", "kubernetes", object{"kubeconfig": filepath.Join(t.TempDir(), "none")})
	run := func(annotations map[string]string) binarytest.Outcome {
		a.Config = set(config, "runtimeConfig", object{netconf.AnnotationsCapability: annotations})
		return a.Run(t, "ADD")
	}
	out := run(map[string]string{"kubernetes.io/config.source": "api"})
	require.Zero(t, out.Exit, "%s\n%s", out.Stdout, out.Stderr)
	assert.Contains(t, string(out.Stderr), `"reason":"not-injected"`)
	assert.NotContains(t, rules(t, ns), "PROXY_INIT_")

	code, message := run(meshed.Annotations).Failure()
	assert.Equal(t, 50, code, message)
}
