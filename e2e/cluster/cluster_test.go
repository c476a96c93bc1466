package cluster_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/e2e/internal/machine"
	"github.com/meshcni/meshcni/e2e/internal/onenode"
)

// What the tests name of the cluster.
const (
	nodeName   = onenode.NodeName
	nodeIP     = onenode.NodeIP
	staticPods = onenode.StaticPods
	confList   = onenode.ConfList
	primary    = onenode.Network
	nextTag    = onenode.NextTag
)

var chartImage = onenode.ChartImage

// cluster is the cluster of all tests, on containerd.
type cluster struct {
	*onenode.Cluster

	pristine  map[string]string // the node's files before anything was installed
	explained string            // the test whose failure was explained
}

var (
	startOnce sync.Once
	started   *cluster
)

// sharedCluster is the cluster of all tests. The first one to ask starts it; it ends with the test binary.
func sharedCluster(t testing.TB) *cluster {
	t.Helper()
	machine.Require(t)
	startOnce.Do(func() {
		start := time.Now()
		node, err := onenode.Boot(onenode.Containerd, func(what string) { stage(what, start) })
		require.NoError(t, err)
		pristine, err := files()
		require.NoError(t, err)
		started = &cluster{Cluster: node, pristine: pristine}
	})
	require.NotNil(t, started, "the cluster did not start; an earlier test says why")
	return started
}

// kubeconfig is [onenode.Cluster.WriteKubeconfig].
func (c *cluster) kubeconfig(t testing.TB, name, credentials string) (path string) {
	t.Helper()
	path, err := c.WriteKubeconfig(name, credentials)
	require.NoError(t, err)
	return path
}

// stage prints one line of progress.
func stage(what string, since time.Time) {
	fmt.Printf("cluster: %s after %.1fs\n", what, time.Since(since).Seconds())
}
