package cluster_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestRace: pods are first, and the agent comes later; in each mode it does with them what that mode is for.
func TestRace(t *testing.T) {
	c := sharedCluster(t)
	s := newShop(t, c, "race")
	s.create(t, pod{name: "stuck", validated: true}, pod{name: "running"}, pod{name: "client", outside: true})
	s.deploy(t, pod{name: "web", validated: true})
	s.ready(t, "running", "client")
	s.unredirected(t, "stuck")
	web := s.podOf(t, "web")
	s.unredirected(t, web)
	s.assertUncaptured(t, "running", "client")

	since := install(t, c, "--set", "repair.mode=label")
	// These are asked when the agent is to end; when it acts on a pod; when an event is there already.
	later := []string{"get daemonsets.apps", "get nodes", "get namespaces", "get pods", "patch events"}
	step(t, c, "label", func(t *testing.T) {
		s.kubectl(t, "wait", "pod", "stuck", web, "--for=jsonpath={.metadata.labels.meshcni\\.io/not-redirected}=true", "--timeout=5m")
		s.kubectl(t, "wait", "pod", "running", "--for=jsonpath={.metadata.labels.meshcni\\.io/not-redirected}=true", "--timeout=5m") // without a check of its own
		assert.Equal(t, "running stuck "+web, s.kubectl(t, "get", "pods", "-l", "meshcni.io/not-redirected", "--sort-by=.metadata.name", "-o", "jsonpath={.items[*].metadata.name}"))
		assertRights(t, c, since, later...)
	})
	step(t, c, "delete", func(t *testing.T) {
		upgrade(t, c, "--set", "repair.mode=delete,repair.spareUnmanaged=true")
		s.kubectl(t, "wait", "--for=delete", "pod/"+web, "--timeout=5m")
		s.kubectl(t, "rollout", "status", "deployment/web", "--timeout=5m")
		next := s.podOf(t, "web")
		assert.NotEqual(t, web, next)
		s.assertCaptured(t, next, "client")
		assertRights(t, c, since, later...)
	})
	step(t, c, "repair", func(t *testing.T) {
		uids := "jsonpath={.items[*].metadata.uid}"
		before := s.kubectl(t, "get", "pods", "stuck", "running", "-o", uids)
		// The kubelet starts a failed init container again after a back-off.
		upgrade(t, c, "--set", "repair.mode=repair,repair.verifyInterval=2s")
		eventually(t, soon, "the running pod is captured", func() error {
			if got, want := s.dial(t, "running", s.ip(t, "client")+":8080"), "15001 for "+s.ip(t, "client")+":8080"; got != want {
				return fmt.Errorf("%s", got)
			}
			return nil
		})
		s.assertCaptured(t, "running", "client")
		s.kubectl(t, "wait", "--for=condition=Ready", "pod/stuck", "--timeout=5m")
		s.assertCaptured(t, "stuck", "client")
		assert.Equal(t, before, s.kubectl(t, "get", "pods", "stuck", "running", "-o", uids), "the same pods")
		assertConfined(t, agentPid(t), wantedCapabilities(t, c))
		assertRights(t, c, since, later...)
	})
	s.leave(t)
}

// deploy makes a Deployment.
func (s shop) deploy(t *testing.T, p pod) {
	t.Helper()
	template := "    " + strings.ReplaceAll(strings.TrimSpace(p.template(s.mesh)), "\n", "\n    ")
	s.Apply(t, fmt.Sprintf(`apiVersion: apps/v1
kind: Deployment
metadata: {name: %[1]s, namespace: %[2]s}
spec:
  replicas: %[4]d
  selector: {matchLabels: {app: %[1]s}}
  template:
%[3]s
`, p.name, s.namespace, template, max(p.replicas, 1)))
	s.kubectl(t, "wait", "--for=create", "pod", "-l", "app="+p.name, "--timeout=5m")
}

// podOf is the one pod of a Deployment that is not being deleted.
func (s shop) podOf(t *testing.T, app string) string {
	t.Helper()
	var list struct {
		Items []struct {
			Metadata struct{ Name, DeletionTimestamp string }
		}
	}
	require.NoError(t, json.Unmarshal([]byte(s.kubectl(t, "get", "pods", "-l", "app="+app, "-o", "json")), &list))
	var names []string
	for _, p := range list.Items {
		if p.Metadata.DeletionTimestamp == "" {
			names = append(names, p.Metadata.Name)
		}
	}
	require.Len(t, names, 1)
	return names[0]
}

// unredirected waits until a pod's init container has found its redirection missing.
func (s shop) unredirected(t *testing.T, name string) {
	t.Helper()
	eventually(t, soon, "the init container of "+name+" fails", func() error {
		codes := s.kubectl(t, "get", "pod", name, "-o",
			"jsonpath={.status.initContainerStatuses[0].state.terminated.exitCode},{.status.initContainerStatuses[0].lastState.terminated.exitCode}")
		if !strings.Contains(codes, "126") {
			return fmt.Errorf("exit codes %q", codes)
		}
		return nil
	})
}
