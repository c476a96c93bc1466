//go:build long

package cluster_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/e2e/internal/containerd"
	"github.com/meshcni/meshcni/e2e/internal/image"
)

// nodeEvent waits until the node has an event of the agent for a reason, and returns its message.
func nodeEvent(t *testing.T, c *cluster, reason string) (message string) {
	t.Helper()
	eventually(t, soon, "event "+reason+" of the node", func() error {
		message = c.Run(t, "kubectl", "get", "events", "--namespace=default",
			"--field-selector", "involvedObject.kind=Node,involvedObject.name="+nodeName+",reportingComponent=meshcni-node,reason="+reason,
			"-o", "jsonpath={.items[*].message}")
		if message == "" {
			return fmt.Errorf("there is none")
		}
		return nil
	})
	return message
}

// forgetNodeEvents deletes those of earlier tests.
func forgetNodeEvents(t *testing.T, c *cluster) {
	t.Helper()
	c.Run(t, "kubectl", "--namespace=default", "delete", "events", "--all")
}

// TestOtherMesh: another mesh's plugin comes into the list behind ours and replaces our chains. That is on the node, in the metrics
// and in the log, and on the pod; once it is gone and the pod is made anew, all is well.
func TestOtherMesh(t *testing.T) {
	c := sharedCluster(t)
	s := newShop(t, c, "neighbours")
	forgetNodeEvents(t, c)
	s.create(t, pod{name: "client", outside: true})
	install(t, c, "--set", "repair.verifyInterval=2s")

	other := filepath.Join(containerd.CNIBinDir, "istio-cni")
	program, err := os.ReadFile(image.ToolProgram())
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(other, program, 0o755))
	defer func() { _ = os.Remove(other) }()
	list, err := os.ReadFile(confList)
	require.NoError(t, err)
	end := strings.LastIndex(string(list), "\n  ]")
	require.Positive(t, end)
	writeList(t, string(list[:end])+`, {"type": "istio-cni"}`+string(list[end:]))

	message := nodeEvent(t, c, "OtherMesh")
	assert.Contains(t, message, `"istio-cni" (Istio), after our entry in `+confList)
	assert.Contains(t, c.Run(t, "kubectl", "describe", "node", nodeName), "OtherMesh")
	assert.Contains(t, metrics(t, c), "meshcni_other_mesh{plugin=\"istio-cni\"} 1")
	assert.Contains(t, agentLog(t, c), `"code":"other-mesh","plugin":"istio-cni"`)
	rolledOut(t, c) // it is ready all the same

	s.create(t, pod{name: "cart"})
	s.ready(t, "cart", "client")
	assert.Equal(t, "8080 for "+s.ip(t, "client")+":8080", s.dial(t, "cart", s.ip(t, "client")+":8080"), "our rules are replaced")
	assert.Contains(t, s.event(t, "cart", "MeshRulesDrifted"), `may have been replaced by "istio-cni" (Istio), after our entry`)

	// The remedy: the other's installer takes its entry out, and pods of that time are made anew.
	writeList(t, string(list))
	assert.Contains(t, nodeEvent(t, c, "OtherMeshGone"), "istio-cni")
	s.kubectl(t, "delete", "pod", "cart", "--timeout=5m")
	s.create(t, pod{name: "cart"})
	s.ready(t, "cart")
	s.assertCaptured(t, "cart", "client")
	assert.NotContains(t, metrics(t, c), "meshcni_other_mesh{")
	require.NoError(t, os.Remove(other))
	s.leave(t)
}

// TestFoughtOver: a program writes the network's list anew each second. The node's events say so with the remedy, which ends it:
// from then on every pod of the mesh is captured. By default the agent does it by itself.
func TestFoughtOver(t *testing.T) {
	c := sharedCluster(t)
	s := newShop(t, c, "fought")
	own := containerd.CNIConfDir + "/00-meshcni.conflist"
	s.create(t, pod{name: "client", outside: true})
	captured := func(t *testing.T, names ...string) {
		for _, name := range names {
			s.create(t, pod{name: name, validated: true})
		}
		s.ready(t, append(names, "client")...)
		for _, name := range names {
			s.assertCaptured(t, name, "client")
		}
	}

	step(t, c, "by hand", func(t *testing.T) {
		forgetNodeEvents(t, c)
		install(t, c, "--set", "cni.ownFile=false")
		stop := fightOver(t)
		assert.Contains(t, nodeEvent(t, c, "Fight"), "; set --own-file (chart: cni.ownFile=true), with which")
		c.Run(t, "helm", "upgrade", release, chart, "--namespace", system, "--reuse-values", "--set", "cni.ownFile=true")
		rolledOut(t, c)
		captured(t, "a1", "a2", "a3")
		stop()
		s.kubectl(t, "delete", "pods", "a1", "a2", "a3", "--timeout=5m")
		uninstall(t, c)
	})
	step(t, c, "auto", func(t *testing.T) {
		forgetNodeEvents(t, c)
		install(t, c)
		assert.NoFileExists(t, own)
		stop := fightOver(t)
		assert.Contains(t, nodeEvent(t, c, "OwnFileTaken"), "00-meshcni.conflist")
		eventually(t, soon, "our own file is there", func() error { _, err := os.Stat(own); return err })
		assert.Contains(t, metrics(t, c), "meshcni_own_file 1\n")
		captured(t, "b1", "b2", "b3")
		c.Run(t, "kubectl", "--namespace", system, "rollout", "restart", "daemonset/meshcni-node")
		rolledOut(t, c)
		assert.FileExists(t, own, "the next agent stays with it")
		captured(t, "b4")
		stop()
		s.leave(t)
	})
}

// TestNodeSaysWhyTheAgentIsNotReady: what keeps an agent from being ready is an event of its node, with the code.
func TestNodeSaysWhyTheAgentIsNotReady(t *testing.T) {
	c := sharedCluster(t)
	s := newShop(t, c, "unready")
	forgetNodeEvents(t, c)
	install(t, c)
	c.Run(t, "helm", "upgrade", release, chart, "--namespace", system, "--reuse-values", "--set", "cni.confName=99-none.conflist")
	message := nodeEvent(t, c, "NamedFileMissing")
	assert.Contains(t, message, "99-none.conflist")
	assert.Contains(t, message, "not ready")
	c.Run(t, "helm", "rollback", release, "--namespace", system)
	rolledOut(t, c)
	s.leave(t)
}
