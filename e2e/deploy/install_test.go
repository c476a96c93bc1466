package deploy_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/internal/testing/kubetest"
)

// TestLifeOfARelease installs, upgrades to something quite different and
// uninstalls, on a real API server, as a user does. Then nothing is left.
//
// It is not parallel: what it makes for the whole cluster, the others try to make.
func TestLifeOfARelease(t *testing.T) {
	admin := server(t)
	on := release(t, "mesh-a", nil)
	out, err := on("install", values{})
	require.NoError(t, err)
	assert.Contains(t, out, "kubectl -n mesh-a rollout status daemonset/meshcni-node")
	assert.Contains(t, out, "helm -n mesh-a test meshcni --logs")
	out, err = on("upgrade", values{"profile": "openshift", "dialect": "linkerd", "repair": values{"mode": "delete", "verifyInterval": "5m"}}.
		with(options["alerts, dashboard"]).with(options["pod monitor"]).with(options["network policy"]))
	require.NoError(t, err)
	assert.Contains(t, out, "dialect linkerd, profile openshift, repair delete")
	assert.Equal(t, 1, strings.Count(out, "WARNING: "), "%s", out)
	assert.Contains(t, out, "WARNING: With hostNetwork false")
	manifest, err := helm(t, "get", "manifest", "meshcni", "--namespace", "mesh-a", "--kubeconfig", kubetest.Shared(t).Kubeconfig(t, kubetest.AdminToken))
	require.NoError(t, err)
	assert.Len(t, labelled(t, admin), strings.Count("\n"+manifest, "\nkind: "), "all that the release made has its labels")
	_, err = on("upgrade", values{"profile": "bottlerocket", "metrics": values{"serviceMonitor": values{"enabled": true}}})
	require.NoError(t, err)
	// What a profile said is not kept as if the user had said it.
	_, err = on("upgrade", nil, chart, "--reuse-values", "--set", "profile=gke")
	require.NoError(t, err)
	var ds appsv1.DaemonSet
	admin.Do(t, http.MethodGet, collection("apps/v1", "DaemonSet", "mesh-a")+"/meshcni-node", nil, &ds)
	assert.Equal(t, []string{"--cni-bin-dir=/host/home/kubernetes/bin", "--cni-conf-dir=/host/etc/cni/net.d", "--chained=true", "--health-address=127.0.0.1:8000"},
		flagsOf(ds.Spec.Template.Spec.Containers[0], "cni-bin-dir", "cni-conf-dir", "cni-conf-name", "chained", "health-address"))
	// Nobody runs the Job of the removal's hook here; e2e/cluster has a node for it.
	_, err = on("uninstall", nil, "--no-hooks")
	require.NoError(t, err)
	assert.Empty(t, labelled(t, admin))
}

// labelled are all objects of the chart that are on the server.
func labelled(t testing.TB, admin *kubetest.Admin) (paths []string) {
	t.Helper()
	for apiVersion, kinds := range map[string]string{
		"v1":                              "ConfigMap ServiceAccount Service ResourceQuota Pod",
		"apps/v1":                         "DaemonSet",
		"rbac.authorization.k8s.io/v1":    "Role RoleBinding ClusterRole ClusterRoleBinding",
		"networking.k8s.io/v1":            "NetworkPolicy",
		"admissionregistration.k8s.io/v1": "ValidatingAdmissionPolicy ValidatingAdmissionPolicyBinding",
		"monitoring.coreos.com/v1":        "ServiceMonitor PodMonitor PrometheusRule",
		"security.openshift.io/v1":        "SecurityContextConstraints",
		"k8s.cni.cncf.io/v1":              "NetworkAttachmentDefinition",
	} {
		for kind := range strings.FieldsSeq(kinds) {
			var list metav1.PartialObjectMetadataList
			path := collection(apiVersion, kind, "")
			admin.Do(t, http.MethodGet, path+"?labelSelector=app.kubernetes.io/instance=meshcni,app.kubernetes.io/managed-by=Helm", nil, &list)
			for _, o := range list.Items {
				paths = append(paths, kind+" "+o.Namespace+"/"+o.Name)
			}
		}
	}
	return paths
}

// release returns how to do something with a release in a namespace of its own,
// with labels.
func release(t testing.TB, namespace string, labels values) func(verb string, v values, flags ...string) (string, error) {
	t.Helper()
	admin := kubetest.Shared(t).Admin(t)
	admin.Do(t, http.MethodPost, collection("v1", "Namespace", ""), values{"metadata": values{"name": namespace, "labels": labels}}, nil)
	config := kubetest.Shared(t).Kubeconfig(t, kubetest.AdminToken)
	return func(verb string, v values, flags ...string) (string, error) {
		args := append([]string{verb, "meshcni", "--namespace", namespace, "--kubeconfig", config}, flags...)
		if v != nil {
			args = append(args, chart, "--values", v.write(t))
		}
		return helm(t, args...)
	}
}

// TestNotes: who installs is told what is wrong with his values, and on his cluster.
func TestNotes(t *testing.T) {
	server(t)
	const (
		admission = "does not admit the agent's pods"
		openshift = "This looks like OpenShift" // so it does here: its kinds are defined
	)
	strict := release(t, "mesh-strict", values{"pod-security.kubernetes.io/enforce": "baseline"})
	plain := release(t, "mesh-plain", nil)
	for name, c := range map[string]struct {
		on     func(string, values, ...string) (string, error)
		values values
		says   []string
	}{
		"defaults":        {plain, values{}, []string{openshift}},
		"admission":       {strict, values{"openshift": values{"scc": "create"}}, []string{admission + ", which have host paths. Allow them:\n  kubectl label namespace mesh-strict --overwrite pod-security.kubernetes.io/enforce=privileged"}},
		"talos":           {plain, values{"profile": "talos"}, []string{admission, openshift}},
		"multus":          {plain, values{"cni": values{"chained": false}}, []string{openshift, "cni.chained is false, so only Multus"}},
		"host network":    {plain, values{"networkPolicy": values{"enabled": true}}, []string{openshift, "networkPolicy does nothing"}},
		"scraped":         {plain, values{"metrics": values{"podMonitor": values{"enabled": true}}}, []string{openshift, "open, without authentication, on port 15014 of each node's own address"}},
		"open":            {plain, values{"metrics": values{"host": ""}}, []string{openshift, "on port 15014 of every address of each node"}},
		"not reached":     {plain, values{"metrics": values{"host": "::1", "service": values{"enabled": true}}}, []string{openshift, "only a scraper on the node itself"}},
		"pods' network":   {plain, values{"hostNetwork": false}, []string{openshift, "the agent starts through the plugin that it installs"}},
		"repair":          {plain, values{"repair": values{"forceDelete": true}}, []string{openshift, "repair.forceDelete does nothing with repair.mode auto"}},
		"no policies":     {plain, values{"admission": values{"enabled": false}}, []string{openshift, "admission.enabled is false", "stay outside the mesh until somebody deletes them"}},
		"always":          {plain, values{"uninstallOnExit": true}, []string{openshift, "uninstallOnExit true takes the plugin away"}},
		"never":           {plain, values{"uninstallOnExit": false}, []string{openshift, "uninstallOnExit false leaves the plugin"}},
		"microk8s":        {plain, values{"profile": "microk8s", "repair": values{"mode": "repair"}}, []string{openshift, "MicroK8s gives its plugins files of its own"}},
		"ambient":         {plain, ambientOn.with(values{"profile": "openshift"}), []string{"With cni.chained false, pods that do not ask Multus"}},
		"ambient, stays":  {plain, ambientOn.with(values{"uninstallOnExit": false}), []string{openshift, "run \"meshcni-node release\" on each node before", "uninstallOnExit false leaves the plugin"}},
		"roles of others": {plain, values{"rbac": values{"create": false}}, []string{openshift, "rbac.create is false"}},
	} {
		out, err := c.on("install", c.values, "--dry-run=server")
		require.NoError(t, err, name)
		_, notes, ok := strings.Cut(out, "\nNOTES:\n")
		require.True(t, ok, "%s", out)
		assert.Contains(t, notes, "\n\nWhat remains when you uninstall: https://", name)
		warnings := strings.Split(notes, "\nWARNING: ")[1:]
		if assert.Len(t, warnings, len(c.says), "%s: %q", name, warnings) {
			for i, says := range c.says {
				assert.Contains(t, warnings[i], says, name)
			}
		}
	}
}
