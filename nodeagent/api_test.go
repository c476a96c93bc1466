//go:build linux

package nodeagent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/internal/node/attachment"
	"github.com/meshcni/meshcni/internal/node/recent"
	"github.com/meshcni/meshcni/internal/testing/waittest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/nodeagent/agentapi"
	"github.com/meshcni/meshcni/plugin/netconf"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/status"
)

// capturedPod is one with the plugin's rules and the record of ADD, below the directory of a node.
func capturedPod(t *testing.T, dir string) (apply.Backend, attachment.Record) {
	t.Helper()
	ns := netnstest.New(t)
	rules, err := redirect.Default().Ruleset()
	require.NoError(t, err)
	b, err := apply.Choose(t.Context(), ns, apply.Options{Backend: ruleset.BackendNftables})
	require.NoError(t, err)
	_, err = b.Apply(t.Context(), rules)
	require.NoError(t, err)
	id := ns.ID()
	record := attachment.Record{
		ID: attachment.ID{Network: "calico", ContainerID: "c1", IfName: "eth0"}, NetNS: attachment.NetNS{Path: ns.Path(), Dev: id.Dev, Ino: id.Ino},
		Pod: status.ID{Namespace: "shop", Name: "cart", UID: "u1"}, Selected: true, Reason: "selected", Dialect: "istio", By: "ADD", Time: time.Unix(1e9, 0).UTC(),
	}
	record.Applied(ruleset.BackendNftables, rules, nil)
	require.NoError(t, attachment.Open(dir+"/run").Write(record))
	return b, record
}

// TestAPI: a running agent says on its loopback interface what its commands say, and what is true of a pod.
func TestAPI(t *testing.T) {
	netnstest.Require(t, netnstest.Root)
	dir, o := node(t)
	b, record := capturedPod(t, dir)
	o.Config.Identity.Version = "v1.2.3 (commit x)"
	o.Config.HealthAddress, o.Config.Node, o.Config.Plugin.Dialects = "127.0.0.1:0", "n1", netconf.Dialects{"istio", "linkerd"}
	o.Config.Plugin.Kubernetes.ExcludeNamespaces = []string{"a", "b"}
	agent := start(t, o.opens(knowing{fake: forever, pods: threePods}))
	base := agent.base(t)
	get := func(path string, into any) int {
		answer, err := http.Get(base + path)
		require.NoError(t, err)
		defer func() { _ = answer.Body.Close() }()
		text, err := io.ReadAll(answer.Body)
		require.NoError(t, err)
		if answer.StatusCode == http.StatusOK {
			require.NoError(t, json.Unmarshal(text, into), string(text))
		}
		return answer.StatusCode
	}
	var n agentapi.Node
	require.Eventually(t, func() bool {
		n = agentapi.Node{}
		return get(agentapi.NodePath, &n) == http.StatusOK && n.Ready && len(n.Pods) == 3 && n.Installed.File != ""
	}, netnstest.Patience, 10*time.Millisecond)
	assert.Equal(t, "n1", n.Node)
	assert.Equal(t, "v1.2.3", n.Version)
	assert.Equal(t, []string{"istio", "linkerd"}, n.Dialects)
	assert.Equal(t, dir+"/net.d/10-calico.conflist", n.Installed.File)
	require.Len(t, n.BinDirs, 1)
	assert.Equal(t, agentapi.BinDir{Path: dir + "/bin", Plugin: agentapi.Current}, n.BinDirs[0])
	require.Len(t, n.Places, 4)
	for _, p := range n.Places {
		assert.Equal(t, p.Flag == "cni-cache-dir", p.Error != "", p.Error)
	}
	assert.NotEmpty(t, n.Rights)
	assert.Equal(t, "meshcni", n.Installed.Plugins[len(n.Installed.Plugins)-1])
	c, unknown, err := netconf.Parse(n.Installed.Config, meshcni.Identity{})
	require.NoError(t, err)
	assert.Empty(t, unknown)
	assert.Equal(t, []string{"a", "b"}, c.Kubernetes.ExcludeNamespaces)
	assert.Equal(t, []bool{false, true, false}, []bool{n.Pods[0].NeedsAttention(), n.Pods[1].NeedsAttention(), n.Pods[2].NeedsAttention()})
	said := agent.Status()
	for i, p := range said.Pods {
		assert.Equal(t, []any{p.Namespace, p.Name, p.UID, p.State, p.Reason}, []any{n.Pods[i].Namespace, n.Pods[i].Name, n.Pods[i].UID, n.Pods[i].State, n.Pods[i].Reason})
	}

	var p agentapi.Pod
	assert.Equal(t, http.StatusOK, get(agentapi.PodPath+"u1", &p))
	assert.Equal(t, status.StateCaptured, p.State.State)
	require.Len(t, p.Records, 1)
	assert.Equal(t, record.Reason, p.Records[0].Reason)
	assert.Empty(t, p.LiveError)
	require.NotEmpty(t, p.Live)
	for _, r := range p.Live {
		assert.True(t, r.Ours, r.Text)
	}
	assert.Empty(t, p.Differences)
	require.NoError(t, b.Remove(t.Context(), redirect.Default().Names.Owner()))
	waittest.Eventually(t, "another look at the pod", func() error {
		p = agentapi.Pod{}
		if code := get(agentapi.PodPath+"u1", &p); code != http.StatusOK || len(p.Live) > 0 {
			return fmt.Errorf("status %d, %d rules", code, len(p.Live))
		}
		return nil
	})
	assert.NotEmpty(t, p.Lost)

	p = agentapi.Pod{}
	assert.Equal(t, http.StatusOK, get(agentapi.PodPath+"u9", &p))
	assert.Equal(t, "the agent does not know the node's pods", p.LiveError, "it has no API server here")
	assert.Equal(t, http.StatusBadRequest, get(agentapi.PodPath+strings.Repeat("u", 65), &p))
	assert.Equal(t, http.StatusBadRequest, get(agentapi.PodPath+"..%2F..", &p))

	// An embedder's own server, and registry.
	own := httptest.NewServer(agent)
	defer own.Close()
	base = own.URL
	assert.Equal(t, http.StatusOK, get(agentapi.NodePath, &n))
	assert.Equal(t, http.StatusOK, statusCode(base+"/readyz"))
	assert.Equal(t, http.StatusOK, statusCode(base+"/metrics"))
	remote := httptest.NewRequest(http.MethodGet, agentapi.NodePath, nil) // from 192.0.2.1
	answer := httptest.NewRecorder()
	agent.ServeHTTP(answer, remote)
	assert.Equal(t, http.StatusNotFound, answer.Code)
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(agent)
	families, err := registry.Gather()
	require.NoError(t, err)
	assert.Greater(t, len(families), 10)
	require.NoError(t, agent.end())
	require.ErrorContains(t, agent.Run(t.Context()), "has run already")
}

// TestAPIInstalled: that no file has the entry is one thing, that it cannot be told another, and an entry that is wrong a third.
func TestAPIInstalled(t *testing.T) {
	for name, test := range map[string]struct {
		make     func(t *testing.T, dir string)
		says     string
		has      bool
		unread   bool
		settings bool
	}{
		"none":  {make: func(*testing.T, string) {}, says: "has no entry of type meshcni"},
		"there": {make: func(t *testing.T, dir string) { conflistWith(t, dir, `{"type":"meshcni"}`) }, has: true, settings: true},
		"wrong": {make: func(t *testing.T, dir string) { conflistWith(t, dir, `{"type":"meshcni","backend":"tables"}`) }, says: `"tables"`, has: true},
		"types unread": {make: func(t *testing.T, dir string) {
			require.NoError(t, os.MkdirAll(filepath.Join(dir, "run/types"), 0o755))
		}, says: "whether it has another type is unknown: read ", unread: true},
		"directory unread": {make: func(t *testing.T, dir string) {
			require.NoError(t, os.RemoveAll(filepath.Join(dir, "net.d")))
			require.NoError(t, os.WriteFile(filepath.Join(dir, "net.d"), nil, 0o644))
		}, says: "not a directory", unread: true},
	} {
		t.Run(name, func(t *testing.T) {
			dir, o := node(t)
			test.make(t, dir)
			i := nodeAPI{}.installed(o.Config)
			assert.Equal(t, test.unread, i.Unread)
			assert.Equal(t, test.settings, i.Config != nil)
			if test.has {
				assert.Equal(t, filepath.Join(dir, "net.d/10-calico.conflist"), i.File)
				assert.Equal(t, []string{"calico", "meshcni"}, i.Plugins)
			} else {
				assert.Empty(t, i.File)
			}
			if test.says == "" {
				assert.Empty(t, i.Error)
			} else {
				assert.Contains(t, i.Error, test.says)
			}
		})
	}
}

func conflistWith(t *testing.T, dir, entry string) {
	t.Helper()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "net.d/10-calico.conflist"), []byte(strings.Replace(calico, "]}", ","+entry+"]}", 1)), 0o644))
}

// TestPodsCounted: a pod that the plugin refuses has no network, so it is not outside the mesh; a pod that the agent lists counts once.
func TestPodsCounted(t *testing.T) {
	pod := func(uid string, phase corev1.PodPhase, ip string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "p", UID: types.UID(uid)}, Status: corev1.PodStatus{Phase: phase, PodIP: ip}}
	}
	hosts, ending := pod("h", corev1.PodRunning, "192.0.2.1"), pod("e", corev1.PodPending, "")
	hosts.Spec.HostNetwork, ending.DeletionTimestamp = true, &metav1.Time{}
	total, starting := networked([]*corev1.Pod{
		pod("runs", corev1.PodRunning, "10.0.0.1"), pod("init", corev1.PodPending, "10.0.0.2"), pod("refused", corev1.PodPending, ""), pod("new", "", ""),
		pod("listed", corev1.PodPending, ""), pod("done", corev1.PodSucceeded, ""), hosts, ending,
	}, []status.Pod{{ID: status.ID{Namespace: "shop", Name: "p", UID: "listed"}}, {ID: status.ID{Namespace: "other", Name: "p", UID: "refused"}}})
	assert.Equal(t, [2]int{3, 2}, [2]int{total, starting})
}

// TestAPIPodsUnknown: that the node's pods are not known is not that a pod is none of them.
func TestAPIPodsUnknown(t *testing.T) {
	api := nodeAPI{pods: func() ([]*corev1.Pod, error) { return nil, errors.New("not listed yet") }}
	assert.EqualError(t, api.hosts("u1", agentapi.Pod{}), "not listed yet")
	assert.NoError(t, api.hosts("u1", agentapi.Pod{State: &status.Pod{}}))
	api.pods = func() ([]*corev1.Pod, error) { return nil, nil }
	api.podByUID = func(uid string) *corev1.Pod {
		return map[string]*corev1.Pod{"u1": {}, "hosts": {Spec: corev1.PodSpec{HostNetwork: true}}}[uid]
	}
	assert.NoError(t, api.hosts("u1", agentapi.Pod{}))
	assert.EqualError(t, api.hosts("u2", agentapi.Pod{}), "the agent does not know the pod")
	assert.EqualError(t, api.hosts("hosts", agentapi.Pod{}), "the agent does not know the pod")
}

// TestAPILooksOnce: many questions about one pod are one look, whoever asks and goes; another pod's is another.
func TestAPILooksOnce(t *testing.T) {
	var looks atomic.Int32
	dir := t.TempDir()
	begun, goOn := make(chan struct{}), make(chan struct{})
	api := nodeAPI{
		settings: func() Config {
			if looks.Add(1) == 1 {
				close(begun)
			}
			<-goOn
			c := Config{}
			c.RunDir = dir
			return c
		},
		status: func() Status { return Status{} }, pods: func() ([]*corev1.Pod, error) { return nil, nil }, podByUID: func(string) *corev1.Pod { return nil },
		looks: &recent.Values[agentapi.Pod]{},
	}
	var all sync.WaitGroup
	first, leave := context.WithCancel(t.Context())
	all.Go(func() { api.pod(first, "u1") })
	<-begun
	leave()
	for range 50 {
		all.Go(func() { assert.Equal(t, "the agent does not know the pod", api.pod(t.Context(), "u1").LiveError) })
	}
	close(goOn)
	all.Wait()
	assert.EqualValues(t, 1, looks.Load())
	api.pod(t.Context(), "u2")
	assert.EqualValues(t, 2, looks.Load())
}
