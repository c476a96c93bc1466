package demo

import (
	"cmp"
	"context"
	"errors"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/ambient"
	"github.com/meshcni/meshcni/internal/node/judge"
	"github.com/meshcni/meshcni/internal/node/netnsstore"
	"github.com/meshcni/meshcni/internal/nodecontrol"
	"github.com/meshcni/meshcni/nodeproxy"
	"github.com/meshcni/meshcni/nodeproxy/zds"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/status"
)

// agent is the half of the node agent that hands pods to a proxy, and the cluster that it hears of.
type agent struct {
	*demo
	controller *nodecontrol.Controller
	cluster    *cluster
	end        func()
}

// newAgent runs an agent that knows the pods.
func (d *demo) newAgent(dir, socket string, pods ...*corev1.Pod) *agent {
	a := &agent{demo: d, cluster: &cluster{pods: pods}}
	store := netnsstore.New(netnsstore.Options{RunDir: filepath.Join(dir, "run")})
	server, err := zds.Listen(d.Context(), zds.Options{
		Path: socket, OnChange: func() { a.controller.ProxyChanged() },
		Snapshot: func(ctx context.Context) ([]nodeproxy.Workload, error) { return a.controller.Snapshot(ctx) },
	})
	require.NoError(d, err)
	a.controller, err = nodecontrol.New(nodecontrol.Options{
		Meshes: dialect.SetOf(ambient.New(ambient.Options{})), Apply: apply.Options{Backend: ruleset.BackendNftables},
		Pods: a.cluster, Namespaces: nodecontrol.Store{Store: store}, Proxy: server, Status: a.cluster,
	})
	require.NoError(d, err)
	ctx, stop := context.WithCancel(context.Background())
	var both errgroup.Group
	both.Go(func() error { return a.controller.Run(ctx) })
	both.Go(func() error { return server.Run(ctx) })
	a.end = sync.OnceFunc(func() {
		stop()
		require.NoError(d, errors.Join(both.Wait(), store.Close()))
	})
	d.Cleanup(a.end)
	return a
}

// label labels the namespace, and waits until all of its pods are in that state.
func (a *agent) label(mode string, state status.State) {
	a.Helper()
	start := time.Now()
	a.cluster.label(mode)
	require.Eventually(a, func() bool {
		return !slices.ContainsFunc(a.controller.Pods(), func(p status.Pod) bool { return p.State != state })
	}, patience, time.Millisecond)
	took := time.Since(start).Round(time.Millisecond)
	for _, pod := range a.cluster.Pods() {
		annotation := cmp.Or(pod.Annotations[ambient.Redirection], "none")
		a.say("   %s/%s: %s; annotation %s: %s", pod.Namespace, pod.Name, state, ambient.Redirection, annotation)
	}
	a.say("   That took %s.", took)
}

// cluster is an API server's view of one namespace: its pods, and its label.
type cluster struct {
	mu      sync.Mutex
	pods    []*corev1.Pod
	mode    string
	changed func(types.UID)
}

func (c *cluster) Pods() []*corev1.Pod {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.pods)
}

func (c *cluster) ByUID(uid types.UID) *corev1.Pod {
	for _, pod := range c.Pods() {
		if pod.UID == uid {
			return pod
		}
	}
	return nil
}

func (c *cluster) RuntimeUID(pod *corev1.Pod) types.UID { return pod.UID }

func (c *cluster) Known(id status.ID) *corev1.Pod { return c.ByUID(types.UID(id.UID)) }

func (c *cluster) Synced() bool { return true }

func (c *cluster) Judgement(pod *corev1.Pod) *judge.Judgement {
	c.mu.Lock()
	defer c.mu.Unlock()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: pod.Namespace, Labels: map[string]string{ambient.DataplaneMode: c.mode}}}
	return judge.New(dialect.SetOf(ambient.New(ambient.Options{}))).Pod(pod, namespace, nil)
}

func (c *cluster) Subscribe(changed func(types.UID)) (cancel func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.changed = changed
	return func() {}
}

// label changes the namespace's label.
func (c *cluster) label(mode string) {
	c.mu.Lock()
	c.mode = mode
	c.mu.Unlock()
	for _, pod := range c.Pods() {
		c.changed(pod.UID)
	}
}

// Annotate writes an annotation.
func (c *cluster) Annotate(_ context.Context, of *corev1.Pod, key, value string) error {
	c.mu.Lock()
	for i, pod := range c.pods {
		if pod.UID == of.UID {
			c.pods[i] = pod.DeepCopy()
			metav1.SetMetaDataAnnotation(&c.pods[i].ObjectMeta, key, value)
			if value == "" {
				delete(c.pods[i].Annotations, key)
			}
		}
	}
	c.mu.Unlock()
	c.changed(of.UID)
	return nil
}
