package systemtest

import (
	"fmt"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/internal/testing/kubetest"
	"github.com/meshcni/meshcni/internal/testing/nodeproxytest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/status"
)

// The node and the cluster whose agent is measured.
const (
	fullNode     = 110 // the kubelet's own limit
	manyInNode   = 22  // namespaces that have pods on it
	agentMostKiB = 32 << 10
)

// allNamespaces is how many the cluster has.
func allNamespaces() int {
	if testing.Short() {
		return 100
	}
	return 10_000
}

// memory is what the kernel says of a process, in KiB.
func memory(t testing.TB, pid int) map[string]int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	require.NoError(t, err)
	kib := map[string]int{}
	for _, m := range regexp.MustCompile(`(?m)^(VmHWM|VmRSS|RssAnon|RssFile):\s*(\d+) kB$`).FindAllStringSubmatch(string(text), -1) {
		kib[m[1]], err = strconv.Atoi(m[2])
		require.NoError(t, err)
	}
	return kib
}

// TestMemory: the agent of a full node whose pods are all captured, in a cluster of many namespaces, takes little memory.
func TestMemory(t *testing.T) {
	n := newNode(t, ruleset.BackendNftables)
	kubetest.Parallel(allNamespaces(), func(i int) {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("crowd-%d-of-%s", i, n.ns), Labels: map[string]string{"team": fmt.Sprint("team-", i), "env": "prod"},
			Annotations: map[string]string{"owner": strings.Repeat("x", 200)},
		}}
		n.Do(t, http.MethodPost, "/api/v1/namespaces", ns, nil)
	})
	n.start()
	idle := memory(t, n.agent.Pid())
	proxy := n.proxy(nodeproxytest.Faults{})
	all := make([]*pod, fullNode)
	for i := range all {
		a := fmt.Sprintf("10.244.2.%d", i+1)
		in := *n
		in.ns = fmt.Sprintf("crowd-%d-of-%s", i%manyInNode, n.ns)
		all[i] = in.pod(fmt.Sprint("cart-", i), small(t, a), "ambient", a)
		all[i].Annotations["note"] = strings.Repeat("y", 1000)
	}
	kubetest.Parallel(fullNode, func(i int) {
		out := all[i].create().attachment().Run(t, "ADD")
		assert.Zero(t, out.Exit, "%s", out.Stdout)
	})
	n.until("all are captured", func() bool {
		captured := 0
		for _, s := range n.states() {
			if s.State == status.StateCaptured {
				captured++
			}
		}
		return captured == fullNode
	})
	require.Len(t, proxy.State().Pods, fullNode)
	full := memory(t, n.agent.Pid())
	t.Logf("agent's memory in KiB: at first %v; when %d pods in %d of %d namespaces are captured %v", idle, fullNode, manyInNode, allNamespaces(), full)
	t.Logf("and then %v", n.restsBelow(agentMostKiB))

	n.agent.Kill()
	n.start("--ambient=false")
	n.until("repair knows all pods", func() bool {
		return strings.Contains(n.get("/metrics"), fmt.Sprintf(`meshcni_pods_known %d`, fullNode))
	})
	t.Logf("without ambient %v", n.restsBelow(agentMostKiB))
}

// restsBelow waits until the agent's resident memory is no more than so many KiB: what it does not need while it waits, it gives back
// every half a minute.
func (n *node) restsBelow(kib int) (now map[string]int) {
	n.t.Helper()
	assert.Eventually(n.t, func() bool {
		now = memory(n.t, n.agent.Pid())
		return now["VmRSS"] <= kib
	}, netnstest.Patience, time.Second)
	return now
}
