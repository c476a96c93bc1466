package deploy_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestSchemaRefuses: what is misspelt or of the wrong type never gets to a node.
func TestSchemaRefuses(t *testing.T) {
	t.Parallel()
	cases := []struct {
		key   string
		value any
		says  string
	}{
		{"dilaect", "istio", "additional properties 'dilaect' not allowed"},
		{"profile", "gcp", "at '/profile'"},
		{"profile", "default", "at '/profile'"},
		{"dialect", "Istio", "at '/dialect'"},
		{"dialect", []string{}, "at '/dialect'"},
		{"product", "Acme", "at '/product'"},
		{"dialect", []string{"istio", "istio"}, "at '/dialect'"},
		{"dialect", "istio,linkerd", "at '/dialect'"},
		{"dialect", nil, "missing property 'dialect'"},
		{"backend", "ebpf", "at '/backend'"},
		{"agent", "no", "at '/agent'"},
		{"logLevel", "trace", "at '/logLevel'"},
		{"uncapturedFamily", "deny", "at '/uncapturedFamily'"},
		{"refuseProxyUID", "yes", "at '/refuseProxyUID'"},
		{"writeStatus", 1, "at '/writeStatus'"},
		{"addDeadline", 30, "at '/addDeadline'"},
		{"addDeadline", "30", "at '/addDeadline'"},
		{"addDeadline", "-5s", "at '/addDeadline'"},
		{"excludeNamespaces", "kube-system", "at '/excludeNamespaces'"},
		{"excludeNamespaces", []string{"kube-system,istio-system"}, "at '/excludeNamespaces/0'"},
		{"excludeNamespaces", []string{"a", "a"}, "at '/excludeNamespaces'"},
		{"excludeNamespaceSelector", []string{"a=b"}, "at '/excludeNamespaceSelector'"},
		{"excludeNamespaceSelector", " ", "at '/excludeNamespaceSelector'"},
		{"excludeNamespaceSelector", strings.Repeat("a,", 3000), "at '/excludeNamespaceSelector'"},
		{"ambient.dnsCapture", "yes", "at '/ambient/dnsCapture'"},
		{"ambient.dns_capture", true, "additional properties 'dns_capture' not allowed"},
		{"ambient.enablementSelectors", nil, "missing property 'enablementSelectors'"},
		{"ambient.enablementSelectors", []values{{"podSelectors": values{}}}, "at '/ambient/enablementSelectors/0'"},
		{"ambient.enablementSelectors", []values{{"podSelector": values{"matchExpressions": []values{{"key": "a", "operator": "Is"}}}}}, "at '/ambient/enablementSelectors/0/podSelector/matchExpressions/0/operator'"},
		{"ambient.probeIPv4", "::1", "at '/ambient/probeIPv4'"},
		{"ambient.probeIPv6", "10.0.0.1", "at '/ambient/probeIPv6'"},
		{"nameOverride", "-x", "at '/nameOverride'"},
		{"taint.enable", true, "additional properties 'enable' not allowed"},
		{"taint.key", "a b", "at '/taint/key'"},
		{"taint.grace", 60, "at '/taint/grace'"},
		{"taint.maxShare", 20, "at '/taint/maxShare'"},
		{"taint.maxShare", 0, "at '/taint/maxShare'"},
		{"taint.alsoRemove", "cni.istio.io/not-ready", "at '/taint/alsoRemove'"},
		{"taint.replicas", 0, "at '/taint/replicas'"},
		{"fullnameOverride", "Mesh", "at '/fullnameOverride'"},
		{"global.imageRegistry", "https://r", "at '/global/imageRegistry'"},
		{"dnsPolicy", "Cluster", "at '/dnsPolicy'"},
		{"revisionHistoryLimit", -1, "at '/revisionHistoryLimit'"},
		{"extraVolumes", []values{{"name": "run"}}, "at '/extraVolumes/0/name'"},
		{"extraVolumeMounts", []values{{"name": "x"}}, "at '/extraVolumeMounts/0'"},
		{"uninstall.check", "yes", "at '/uninstall/check'"},
		{"uninstall.timeoutSeconds", 0, "at '/uninstall/timeoutSeconds'"},
		{"pluginConfig", values{"type": "meshcni"}, "at '/pluginConfig'"},
		{"ambient.enabled", "yes", "at '/ambient/enabled'"},
		{"ambient.enable", true, "additional properties 'enable' not allowed"},
		{"ambient.zdsSocket", "/agent.sock", "at '/ambient/zdsSocket'"},
		{"ambient.zdsSocket", "run/agent.sock", "at '/ambient/zdsSocket'"},
		{"ambient.zdsSocket", "/" + strings.Repeat("a", 60) + "/" + strings.Repeat("b", 60), "at '/ambient/zdsSocket'"},
		{"runtimeHook.preinstall", "capture", "at '/runtimeHook/preinstall'"},
		{"runtimeHook.pluginDir", "/plugins", "at '/runtimeHook/pluginDir'"},
		{"ambient.verifyInterval", 30, "at '/ambient/verifyInterval'"},
		{"ambient.drainTimeout", "-1s", "at '/ambient/drainTimeout'"},
		{"ambient.systemNamespace", "Not a name", "at '/ambient/systemNamespace'"},
		{"ambient.drainMinimum", "-1s", "at '/ambient/drainMinimum'"},
		{"cni.binDir", "/opt/cni/bin", "additional properties 'binDir' not allowed"},
		{"cni.binDirs", "/opt/cni/bin", "at '/cni/binDirs'"},
		{"cni.binDirs", []string{}, "at '/cni/binDirs'"},
		{"cni.binDirs", []string{"opt/cni/bin"}, "at '/cni/binDirs/0'"},
		{"cni.binDirs", []string{"/opt/cni/bin/"}, "at '/cni/binDirs/0'"},
		{"cni.binDirs", []string{"/opt/../bin"}, "at '/cni/binDirs/0'"},
		{"cni.confDir", "/etc/$(HOME)", "at '/cni/confDir'"},
		{"cni.confDir", "/", "at '/cni/confDir'"},
		{"cni.confName", "../10-x.conflist", "at '/cni/confName'"},
		{"cni.confName", "10-x.txt", "at '/cni/confName'"},
		{"cni.chained", "false", "at '/cni/chained'"},
		{"cni.ownFile", "true", "at '/cni/ownFile'"},
		{"cni.runDir", nil, "missing property 'runDir'"},
		{"apiServer.port", 70000, "at '/apiServer/port'"},
		{"apiServer.host", "https://example", "at '/apiServer/host'"},
		{"apiServer.protocol", "tcp", "at '/apiServer/protocol'"},
		{"uninstallOnExit", "yes", "at '/uninstallOnExit'"},
		{"uninstallOnExit", "true", "at '/uninstallOnExit'"},
		{"repair", nil, "missing property 'repair'"},
		{"detect", nil, "missing property 'detect'"},
		{"detect.enabled", "yes", "at '/detect/enabled'"},
		{"repair.uncaptured", nil, "missing property 'uncaptured'"},
		{"repair.mode", "fix", "at '/repair/mode'"},
		{"repair.enabled", true, "additional properties 'enabled' not allowed"},
		{"repair.verifyInterval", "often", "at '/repair/verifyInterval'"},
		{"repair.exitCodes", []int{0}, "at '/repair/exitCodes/0'"},
		{"repair.exitCodes", "126", "at '/repair/exitCodes'"},
		{"repair.label", "broken", "at '/repair/label'"},
		{"repair.nodeRate", 0, "at '/repair/nodeRate'"},
		{"repair.nodeBurst", 1.5, "at '/repair/nodeBurst'"},
		{"image.tag", "v1:2", "at '/image/tag'"},
		{"image.digest", "v1", "at '/image/digest'"},
		{"image.registry", "https://registry.example", "at '/image/registry'"},
		{"image.repository", "Meshcni", "at '/image/repository'"},
		{"image.pullPolicy", "always", "at '/image/pullPolicy'"},
		{"imagePullSecrets", []string{"pull"}, "at '/imagePullSecrets/0'"},
		{"tolerations", values{"operator": "Exists"}, "at '/tolerations'"},
		{"nodeSelector", values{"a": true}, "at '/nodeSelector/a'"},
		{"updateStrategy.type", "Recreate", "at '/updateStrategy/type'"},
		{"updateStrategy.maxUnavailable", 1, "additional properties 'maxUnavailable' not allowed"},
		{"updateStrategy.rollingUpdate.maxUnavailable", "10", "at '/updateStrategy/rollingUpdate/maxUnavailable'"},
		{"terminationGracePeriodSeconds", "30s", "at '/terminationGracePeriodSeconds'"},
		{"podAnnotations", values{"a": 1}, "at '/podAnnotations/a'"},
		{"extraEnv", values{"A": "b"}, "at '/extraEnv'"},
		{"extraEnv", []values{{"value": "b"}}, "missing property 'name'"},
		{"extraArgs", []string{"run"}, "at '/extraArgs/0'"},
		{"extraCapabilities", []string{"CAP_chown"}, "at '/extraCapabilities/0'"},
		{"privileged", true, "additional properties 'privileged' not allowed"},
		{"seLinuxOptions", "spc_t", "at '/seLinuxOptions'"},
		{"seccompProfile", values{"type": "runtime/default"}, "at '/seccompProfile/type'"},
		{"seccompProfile", values{"type": "Localhost"}, "missing property 'localhostProfile'"},
		{"appArmorProfile", values{"type": "Unconfined", "localhostProfile": "x"}, "at '/appArmorProfile'"},
		{"serviceAccount.name", "", "at '/serviceAccount/name'"},
		{"pluginServiceAccount.name", "", "at '/pluginServiceAccount/name'"},
		{"tokenLifetime", "", "at '/tokenLifetime'"},
		{"tokenLifetime", "day", "at '/tokenLifetime'"},
		{"tokenLifetime", 14400, "at '/tokenLifetime'"},
		{"health.port", 0, "at '/health/port'"},
		{"health.host", "localhost", "at '/health/host'"},
		{"metrics.port", "15014", "at '/metrics/port'"},
		{"metrics.serviceMonitor.interval", "30", "at '/metrics/serviceMonitor/interval'"},
		{"probes.readiness.initialDelaySeconds", 3, "additional properties 'initialDelaySeconds' not allowed"},
		{"resourceQuota.pods", 0, "at '/resourceQuota/pods'"},
		{"networkAttachmentDefinition.namespaces", []string{}, "at '/networkAttachmentDefinition/namespaces'"},
		{"openshift.scc", "anyuid", "at '/openshift/scc'"},
	}
	var all []values
	for _, c := range cases {
		all = append(all, set(c.key, c.value))
	}
	_, err := tryRenderAll(t, all)
	require.ErrorContains(t, err, "values don't meet the specifications of the schema")
	said := map[string]string{}
	for _, part := range regexp.MustCompile(`(?m)^c[0-9]+:\n(?:- .*\n?|  .*\n?)+`).FindAllString(err.Error(), -1) {
		name, text, _ := strings.Cut(part, ":")
		said[name] = text
	}
	for i, c := range cases {
		assert.Contains(t, said[fmt.Sprintf("c%d", i)], c.says, "%v", all[i])
	}
}

// TestCombinationsAreRefused: what each value allows, but not together. All that
// is wrong is said at once.
func TestCombinationsAreRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		values values
		says   []string
	}{
		{values{"cni": values{"ownFile": true, "chained": false}}, []string{"cni.ownFile needs cni.chained"}},
		{values{"cni": values{"ownFile": "auto", "confName": "00-meshcni.conflist"}}, []string{`cni.confName "00-meshcni.conflist": is the name of the list that cni.ownFile auto may keep`}},
		{values{"cni": values{"ownFile": true, "confName": "00.conf"}}, []string{`cni.confName "00.conf": with cni.ownFile it must end in .conflist`}},
		{values{"cni": values{"chained": false, "confName": "a.conflist"}}, []string{`cni.confName "a.conflist": without cni.chained it must end in .conf or .json`}},
		{values{"networkAttachmentDefinition": values{"enabled": true}}, []string{"networkAttachmentDefinition.enabled needs cni.chained false"}},
		{values{"fullnameOverride": "blue"}, []string{`fullnameOverride "blue" must be meshcni-node or begin with meshcni-node-`}},
		{acme.with(values{"fullnameOverride": "meshcni-node"}), []string{`fullnameOverride "meshcni-node" must be acme-node or begin with acme-node-`}},
		{acme.with(values{"cni": values{"confName": "00-acme-cni.conflist"}}), []string{`cni.confName "00-acme-cni.conflist": is the name of the list that cni.ownFile auto may keep`}},
		{values{"dialect": []string{"istio", "osm"}}, []string{`dialect "osm": known is istio, linkerd, kuma, consul, ambient`}},
		{values{"metrics": values{"port": 8000}}, []string{"metrics.port and health.port must differ"}},
		{values{"tokenLifetime": "599s"}, []string{"tokenLifetime 599s", "between 10m and 24h"}},
		{values{"tokenLifetime": "24h1s"}, []string{"tokenLifetime 24h1s"}},
		{values{"tokenLifetime": "1h7s"}, []string{"to a year"}},
		{values{"pluginServiceAccount": values{"name": "meshcni-node"}}, []string{"pluginServiceAccount.name and serviceAccount.name must differ"}},
		{values{"metrics": values{"enabled": false, "podMonitor": values{"enabled": true}, "scrapeAnnotations": true}}, []string{"metrics.podMonitor needs metrics.enabled", "metrics.scrapeAnnotations needs"}},
		{values{"metrics": values{"serviceMonitor": values{"enabled": true}, "podMonitor": values{"enabled": true}}}, []string{"would count everything twice"}},
		{values{"dialect": "consul", "repair": values{"mode": "label", "exitCodes": []int{126}}}, []string{"repair.initContainer and repair.exitCodes must be set for consul"}},
		{values{"dialect": []string{"consul"}, "repair": values{"mode": "label", "exitCodes": []int{126}}}, []string{"must be set for consul"}},
		{values{"dialect": "consul", "repair": values{"mode": "label"}}, []string{"no init container to look at"}}, // also with detection: the agent wants a check
		{values{"dialect": "consul", "repair": values{"verifyInterval": "5m"}}, []string{"no init container to look at"}},
		{ambientOn.with(values{"dialect": "consul", "repair": values{"mode": "repair"}}), []string{"no init container to look at"}},
		{ambientOn.with(values{"agent": "off"}), []string{"agent off does not go with ambient.enabled"}},
		{ambientOn.with(values{"agent": false}), []string{"agent off does not go with ambient.enabled"}},
		{values{"dialect": "ambient"}, []string{"dialect ambient needs ambient.enabled"}},
		{values{"dialect": []string{"ambient", "istio"}}, []string{"dialect ambient needs ambient.enabled"}},
		{values{"profile": "openshift", "cni": values{"chained": true, "ownFile": true}}, []string{"with cni.ownFile it must end in .conflist", "networkAttachmentDefinition.enabled needs"}},
	} {
		_, err := render(t, c.values)
		require.Error(t, err, "%v", c.values)
		for _, says := range c.says {
			assert.Contains(t, err.Error(), says, "%v", c.values)
		}
	}
}

// TestSchemaIsStrict: every object in it that lists its keys refuses others.
func TestSchemaIsStrict(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(chart, "values.schema.json"))
	require.NoError(t, err)
	var schema any
	require.NoError(t, json.Unmarshal(text, &schema))
	var walk func(path []string, node any)
	walk = func(path []string, node any) {
		m, ok := node.(map[string]any)
		if !ok {
			return
		}
		_, listed := m["properties"]
		inCondition := len(path) > 0 && (path[len(path)-1] == "if" || path[len(path)-1] == "extraEnv.items")
		if listed && !inCondition && path[len(path)-1] != "items" {
			assert.Equal(t, false, m["additionalProperties"], "/%s", strings.Join(path, "/"))
		}
		for key, inner := range m {
			walk(append(path, key), inner)
		}
	}
	walk([]string{""}, schema)
}
