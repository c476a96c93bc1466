package cluster_test

import (
	"testing"
)

// TestManifests: the plain manifests do what the chart does.
func TestManifests(t *testing.T) {
	const file = "deploy/manifests/install.yaml"
	c := sharedCluster(t)
	s := newShop(t, c, "plain")
	s.create(t, pod{name: "client", outside: true})

	t.Cleanup(func() { _, _ = c.Try("kubectl", "delete", "--ignore-not-found", "-f", file, "--timeout=60s") })
	c.ExplainFailure(t)
	c.Run(t, "kubectl", "apply", "-f", file)
	rolledOut(t, c)
	s.create(t, pod{name: "cart", validated: true})
	s.ready(t, "cart", "client")
	s.assertCaptured(t, "cart", "client")
	s.kubectl(t, "delete", "pods", "--all", "--timeout=60s")
	s.assertNothingLeft(t)

	c.Run(t, "kubectl", "delete", "-f", file, "--timeout=60s")
	assertClean(t, c)
}
