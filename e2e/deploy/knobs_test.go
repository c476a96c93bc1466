package deploy_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// profiles are the platforms', by their files; "" is none.
func profiles(t testing.TB) (names []string) {
	t.Helper()
	files, err := os.ReadDir(filepath.Join(chart, "profiles"))
	require.NoError(t, err)
	for _, f := range files {
		name := strings.TrimSuffix(f.Name(), ".yaml")
		if name == "default" {
			name = ""
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// repairMode is a way of running repair that has a role, or rights on the node,
// of its own.
type repairMode struct {
	name   string
	values values
	// roles are the files of deploy/rbac without repair-.
	roles []string
	// enters is whether it enters pods' namespaces.
	enters bool
	// blind is detection switched off.
	blind bool
	// admits is whether the API server is said to have admission policies.
	admits bool
}

var repairModes = []repairMode{
	{name: "auto", values: values{}, roles: []string{"none"}},
	{name: "auto, policies", values: values{}, roles: []string{"auto"}, admits: true},
	{name: "auto, no detection", values: values{"spareUnmanaged": false}, roles: []string{"none"}, blind: true},
	{name: "none", values: values{"mode": "none"}, roles: []string{"none"}},
	{name: "none, no detection", values: values{"mode": "none"}, blind: true},
	{name: "label, no detection", values: values{"mode": "label", "uncaptured": false}, roles: []string{"label"}, blind: true},
	{name: "verify", values: values{"verifyInterval": "5m"}, roles: []string{"none"}, enters: true},
	{name: "label", values: values{"mode": "label"}, roles: []string{"label"}},
	{name: "label, verify", values: values{"mode": "label", "verifyInterval": "1h"}, roles: []string{"label"}, enters: true},
	{name: "delete", values: values{"mode": "delete"}, roles: []string{"delete"}},
	{name: "force-delete", values: values{"mode": "delete", "forceDelete": true}, roles: []string{"force-delete"}},
	{name: "repair", values: values{"mode": "repair"}, roles: []string{"repair"}, enters: true},
}

// in are the mode's values with a dialect's.
func (m repairMode) in(dialect string) values {
	v := values{"dialect": dialect, "repair": m.values, "detect": values{"enabled": !m.blind}}
	if dialect == "ambient" {
		v = v.with(ambientOn)
	}
	if m.admits {
		v = v.with(values{"admission": values{"enabled": true}})
	}
	if dialect == "consul" && m.roles != nil { // which has no container that checks
		v = v.with(values{"repair": values{"initContainer": "check", "exitCodes": []int{126}}})
	}
	return v
}

// alone has nothing in the node's network.
var alone = values{"cni": values{"enabled": false}, "runtimeHook": values{"mode": "capture"}}

// acme is a product of others; internal/testing/importtest renders its chart. The chart knows our own meshes only.
var acme = values{"product": "acme", "dialect": "acme"}

var dialectNames = []string{"istio", "linkerd", "kuma", "consul"}

// everyMesh are those with a sidecar, and the one whose proxy is on the node.
var everyMesh = append([]string{"ambient"}, dialectNames...)

// chaining are the ways of getting into the network.
var chaining = map[string]values{
	"chained":       {"cni": values{"chained": true, "confName": ""}, "networkAttachmentDefinition": values{"enabled": false}},
	"own file auto": {"cni": values{"chained": true, "ownFile": "auto", "confName": "10-net.conflist"}, "networkAttachmentDefinition": values{"enabled": false}},
	"own file":      {"cni": values{"chained": true, "ownFile": true, "confName": "01-mesh.conflist"}, "networkAttachmentDefinition": values{"enabled": false}},
	"multus":        {"cni": values{"chained": false, "confName": ""}, "networkAttachmentDefinition": values{"enabled": true, "namespaces": []string{"default", "kube-system"}}},
}

var backends = []string{"auto", "iptables", "iptables-nft", "iptables-legacy", "nftables"}

// options are all other knobs, each with something in it, a few at a time.
var options = map[string]values{
	"image":            {"image": values{"registry": "registry.example:5000", "repository": "mirror/meshcni", "tag": "v9", "pullPolicy": "Always"}, "imagePullSecrets": []values{{"name": "pull"}}},
	"digest":           {"image": values{"digest": "sha256:" + strings.Repeat("0123456789abcdef", 4)}},
	"plugin":           {"excludeNamespaces": []string{"a", "b-2"}, "addDeadline": "1m30s", "logLevel": "debug"},
	"plugin, stricter": {"uncapturedFamily": "drop", "refuseProxyUID": true, "refuseNetRaw": true, "writeStatus": true},
	"agent off":        {"agent": "off"},
	"agent off, bare":  {"agent": false},
	"agent required":   {"agent": "require"},
	"plugin, laxer":    {"refuseProxyUID": false},
	"several meshes":   {"dialect": []string{"linkerd", "istio", "consul"}, "repair": values{"mode": "repair", "verifyInterval": "5m"}},
	"a list of one":    {"dialect": []string{"kuma"}},
	"by label":         {"excludeNamespaceSelector": "mesh in (off,no),!keep"},
	"runtime hook":     {"runtimeHook": values{"mode": "capture", "socket": "/var/run/mesh/nri.sock", "preinstall": true, "pluginDir": "/var/lib/nri/plugins"}},
	"runtime hook off": {"runtimeHook": values{"mode": "off", "preinstall": false}},
	"alone":            alone,
	"alone, status":    alone.with(values{"dialect": "linkerd", "writeStatus": true, "profile": "openshift"}),
	"ambient settings": {"ambient": values{"dnsCapture": false, "ipv6": false, "enablementSelectors": []values{}, "probeIPv4": "198.18.0.1", "probeIPv6": "2001:db8::7"}},
	"ambient":          {"ambient": values{"enabled": true, "zdsSocket": "/var/run/mesh/x/zds.sock", "verifyInterval": "45s", "drainTimeout": "0", "drainMinimum": "4s"}, "agent": "require"},
	"ambient, further": {"ambient": values{"enabled": true}, "dialect": []string{"linkerd", "ambient", "consul"}, "hostNetwork": false, "openshift": values{"scc": "create"}},
	"no namespaces":    {"excludeNamespaces": []string{}},
	"plugin template":  {"pluginConfig": `{"type": "meshcni", "log_level": "__LOG_LEVEL__", "kubernetes": {"kubeconfig": "__KUBECONFIG_FILEPATH__"}}` + "\n"},
	"directories":      {"cni": values{"binDirs": []string{"/opt/a", "/opt/b.d/c"}, "confDir": "/etc/x/net.d", "cacheDir": "/var/cache/cni", "runDir": "/run/mesh"}},
	"api server":       {"apiServer": values{"host": "2001:db8::1", "port": 6443, "protocol": "https"}},
	"uninstall":        {"uninstallOnExit": true},
	"stay":             {"uninstallOnExit": false},
	"host network":     {"health": values{"host": "127.0.0.1", "port": 18000}, "metrics": values{"host": "::1", "port": 18001}},
	"pods' network":    {"hostNetwork": false},
	"scheduling":       {"priorityClassName": "system-cluster-critical", "tolerations": []values{{"key": "a", "operator": "Exists"}}, "nodeSelector": values{"a/b": "c"}, "affinity": values{"nodeAffinity": values{"preferredDuringSchedulingIgnoredDuringExecution": []values{{"weight": 1, "preference": values{"matchExpressions": []values{{"key": "x", "operator": "Exists"}}}}}}}},
	"on delete":        {"updateStrategy": values{"type": "OnDelete"}, "terminationGracePeriodSeconds": 5, "resources": values{"limits": values{"memory": "128Mi"}}},
	"surge":            {"updateStrategy": values{"rollingUpdate": values{"maxUnavailable": 0, "maxSurge": "20%"}}},
	"labels":           {"commonLabels": values{"team": "mesh"}, "labels": values{"l": "1"}, "annotations": values{"a": "yes"}, "podLabels": values{"p": "2"}, "podAnnotations": values{"q": "true"}},
	"labels of ours": {
		"commonLabels": values{"app.kubernetes.io/name": "x", "app.kubernetes.io/component": "y"}, "podLabels": values{"app.kubernetes.io/instance": "z", "sidecar.istio.io/inject": "true"},
		"podAnnotations": values{"sidecar.istio.io/inject": "true"}, "labels": values{"helm.sh/chart": "w"}, "metrics": values{"scrapeAnnotations": true},
	},
	"names": {"nameOverride": "Mesh_1", "global": values{"imageRegistry": "mirror.example:5000", "storageClass": "x"}},
	"volumes": {
		"extraVolumes": []values{{"name": "scratch", "emptyDir": values{}}}, "extraVolumeMounts": []values{{"name": "scratch", "mountPath": "/scratch"}},
		"revisionHistoryLimit": 0, "dnsPolicy": "Default",
	},
	"no uninstall of all": {"uninstall": values{"check": false}},
	"extras":              {"extraEnv": []values{{"name": "GOMEMLIMIT", "value": "100MiB"}}, "extraArgs": []string{"--node-name=$(NODE_NAME)"}, "extraCapabilities": []string{"CHOWN"}},
	"less rights":         {"dacOverride": false},
	"security":            {"seLinuxOptions": values{"type": "spc_t", "level": "s0"}, "seccompProfile": values{"type": "Localhost", "localhostProfile": "meshcni.json"}, "appArmorProfile": values{"type": "Localhost", "localhostProfile": "meshcni"}},
	"accounts of others":  {"rbac": values{"create": false}, "serviceAccount": values{"create": false, "name": "somebody"}, "pluginServiceAccount": values{"create": false, "name": "reader"}},
	"account":             {"serviceAccount": values{"annotations": values{"a": "b"}}},
	"plugin's account":    {"pluginServiceAccount": values{"name": "reader", "annotations": values{"a": "b"}}, "tokenLifetime": "1h30m"},
	"probes":              {"probes": values{"startup": values{"periodSeconds": 1, "failureThreshold": 120}}},
	"no metrics":          {"metrics": values{"enabled": false}},
	"scraped":             {"metrics": values{"scrapeAnnotations": true, "service": values{"enabled": true, "annotations": values{"a": "b"}}}},
	"service monitor":     {"metrics": values{"serviceMonitor": values{"enabled": true, "namespace": "default", "labels": values{"release": "prom"}, "interval": "30s", "scrapeTimeout": "10s", "relabelings": []values{{"action": "labeldrop", "regex": "x"}}, "metricRelabelings": []values{{"action": "drop", "sourceLabels": []string{"__name__"}, "regex": "go_.*"}}}}},
	"pod monitor":         {"metrics": values{"podMonitor": values{"enabled": true, "interval": "1m"}}},
	"alerts, dashboard":   {"metrics": values{"prometheusRule": values{"enabled": true, "labels": values{"role": "alert"}}, "dashboard": values{"enabled": true}}},
	"network policy":      {"hostNetwork": false, "networkPolicy": values{"enabled": true, "metricsFrom": []values{{"namespaceSelector": values{"matchLabels": values{"a": "b"}}}}, "egress": []values{{"ports": []values{{"port": 6443}}}}}},
	"network policy, no":  {"networkPolicy": values{"enabled": true, "egress": []values{}}, "metrics": values{"enabled": false}},
	"quota":               {"resourceQuota": values{"enabled": true, "pods": 20000}},
	"scc":                 {"openshift": values{"scc": "create"}, "hostNetwork": false},
	"scc, privileged":     {"openshift": values{"scc": "privileged"}},
	"taint":               {"taint": values{"enabled": true}},
	"taint, finer": {"taint": values{
		"enabled": true, "key": "example.com/x", "grace": "2m30s", "maxShare": 1, "alsoRemove": []string{"cni.istio.io/not-ready"}, "needsProxy": false, "replicas": 3,
		"priorityClassName": "system-cluster-critical", "nodeSelector": values{"a/b": "c"}, "tolerations": []values{{"key": "a", "operator": "Exists"}}, "resources": values{"limits": values{"memory": "1Gi"}},
	}, "metrics": values{"podMonitor": values{"enabled": true}, "scrapeAnnotations": true}, "tolerations": []values{}},
	"no tests": {"tests": values{"enabled": false}},
	"repair, finer": {"repair": values{
		"mode": "delete", "initContainer": "check", "exitCodes": []int{95, 126}, "message": "no redirection: $(x) $$", "annotation": "-",
		"labelSelector": "a in (b,c),!d", "fieldSelector": "metadata.namespace!=dev", "nodeRate": 0.5, "nodeBurst": 2,
		"spareUnmanaged": true, "verifyInterval": "2m",
	}},
	"repair, auto":  {"repair": values{"mode": "auto"}, "admission": values{"enabled": true}},
	"repair, label": {"repair": values{"mode": "label", "label": "mesh.example/state=broken"}},
}
