package deploy_test

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/repair"
)

func TestLint(t *testing.T) {
	t.Parallel()
	for _, profile := range profiles(t) {
		out, err := helm(t, "lint", "--strict", chart, "--kube-version", kubeVersion, "--set", "profile="+profile)
		assert.NoError(t, err, "profile %q: %s", profile, out)
	}
}

// TestTemplatesBeginWithTheValues: each makes them first, whichever Helm renders
// first.
func TestTemplatesBeginWithTheValues(t *testing.T) {
	t.Parallel()
	for path, text := range readAll(t, filepath.Join(chart, "templates")) {
		if filepath.Ext(path) != ".tpl" {
			assert.True(t, strings.HasPrefix(text, `{{- include "meshcni.init" .`), "templates/%s does not begin with meshcni.init", path)
		}
	}
}

// TestEveryValueIsExplained: directly above each key there is a comment. Where it
// names a default that is the agent's, it is the agent's.
func TestEveryValueIsExplained(t *testing.T) {
	t.Parallel()
	lines := strings.Split(readAll(t, chart)["values.yaml"], "\n")
	key := regexp.MustCompile(`^ *([A-Za-z_./]+):`)
	said := map[string]string{}
	for i, line := range lines {
		if m := key.FindStringSubmatch(line); m != nil {
			above := strings.TrimSpace(lines[i-1])
			assert.True(t, strings.HasPrefix(above, "# "), "values.yaml, line %d: %s is not explained", i+1, m[1])
			said[m[1]] = above
		}
	}
	r := repair.Options{}.WithDefaults()
	for name, value := range map[string]any{
		"nodeRate": r.NodeBudget.PerMinute, "nodeBurst": r.NodeBudget.Burst,
	} {
		assert.Contains(t, said[name], fmt.Sprintf("null: %v.", value), "values.yaml: repair.%s", name)
	}
	c := repair.CriteriaFor(meshcni.Identity{}.WithDefaults(), dialect.Dialect{})
	assert.Contains(t, strings.Join(lines, "\n"), "null: "+c.HandledLabel+"="+c.HandledValue+".")
}

// TestProfilesAreValues: what a profile sets is a value that the user can set,
// that is null until he does, and that has a default.
func TestProfilesAreValues(t *testing.T) {
	t.Parallel()
	files := readAll(t, filepath.Join(chart, "profiles"))
	read := func(text string) map[string]any {
		v := map[string]any{}
		require.NoError(t, yaml.UnmarshalStrict([]byte(text), &v))
		return v
	}
	all := read(readAll(t, chart)["values.yaml"])
	defaults := leaves("", read(files["default.yaml"]))
	for key := range defaults {
		v, ok := leaves("", all)[key]
		assert.True(t, ok && v == nil, "values.yaml has a default for %s, which profiles could not change", key)
	}
	for name, text := range files {
		for key := range leaves("", read(text)) {
			_, ok := defaults[key]
			_, fixed := leaves("", all)[key]
			assert.True(t, ok || fixed && key == "networkAttachmentDefinition.namespaces", "profiles/%s sets %s, for which profiles/default.yaml has no default", name, key)
		}
		assert.Contains(t, text, "https://", "profiles/%s names no source", name)
		assert.Regexp(t, `^# `, text, "profiles/%s says nothing of itself", name)
		out, err := helm(t, "lint", "--strict", chart, "--kube-version", kubeVersion, "--values", filepath.Join(chart, "profiles", name))
		assert.NoError(t, err, "profiles/%s as values: %s", name, out)
	}
}

// leaves are the values that are no maps, by dotted key. What is below the keys
// that take anything is one value.
func leaves(prefix string, v map[string]any) map[string]any {
	out := map[string]any{}
	for key, value := range v {
		inner, nested := value.(map[string]any)
		if key = prefix + key; !nested || slices.Contains([]string{"affinity", "seLinuxOptions"}, key) {
			out[key] = value
			continue
		}
		for k, v := range leaves(key+".", inner) {
			out[k] = v
		}
	}
	return out
}

// platform is what a profile must come to.
type platform struct {
	bins              []string
	conf, cache, file string
	backend           string
	selinux           corev1.SELinuxOptions
	unchained         bool
	kinds             []string // objects that other profiles do not have
	keptFrom          []string // nodes, by a label's value
	noHookDir         bool     // the runtime starts no plugin of ours by itself
}

var platforms = map[string]platform{
	"":             {},
	"gke":          {noHookDir: true, bins: []string{"/home/kubernetes/bin"}, kinds: []string{"ResourceQuota"}},
	"eks":          {keptFrom: []string{"eks.amazonaws.com/compute-type", "fargate"}},
	"aks":          {keptFrom: []string{"type", "virtual-kubelet"}},
	"k3s":          {bins: []string{"/var/lib/rancher/k3s/data/cni"}, conf: "/var/lib/rancher/k3s/agent/etc/cni/net.d"},
	"k3d":          {bins: []string{"/bin"}, conf: "/var/lib/rancher/k3s/agent/etc/cni/net.d"},
	"rke2":         {selinux: corev1.SELinuxOptions{Type: "spc_t"}},
	"microk8s":     {bins: []string{"/var/snap/microk8s/current/opt/cni/bin"}, conf: "/var/snap/microk8s/current/args/cni-network"},
	"minikube":     {},
	"kind":         {},
	"talos":        {noHookDir: true, backend: "nftables"},
	"bottlerocket": {noHookDir: true, backend: "nftables", selinux: corev1.SELinuxOptions{User: "system_u", Role: "system_r", Type: "super_t", Level: "s0"}, keptFrom: []string{"eks.amazonaws.com/compute-type", "fargate"}},
	"openshift": {
		bins: []string{"/var/lib/cni/bin"}, conf: "/etc/cni/multus/net.d", file: "meshcni.conf", unchained: true,
		selinux: corev1.SELinuxOptions{Type: "spc_t"}, kinds: []string{"NetworkAttachmentDefinition", "SecurityContextConstraints"},
	},
}

func TestProfiles(t *testing.T) {
	t.Parallel()
	for _, name := range profiles(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			want, ok := platforms[name]
			require.True(t, ok, "nobody says what profile %q must come to", name)
			if want.bins == nil {
				want.bins = []string{"/opt/cni/bin"}
			}
			for field, def := range map[*string]string{&want.conf: "/etc/cni/net.d", &want.cache: "/var/lib/cni", &want.backend: "auto"} {
				if *field == "" {
					*field = def
				}
			}
			all := mustRender(t, values{"profile": name})
			ds := one[appsv1.DaemonSet](t, all, "DaemonSet", "meshcni-node")
			pod := ds.Spec.Template.Spec
			assert.Equal(t, want.paths(), hostPaths(t, pod))
			assert.Equal(t, want.args(), flagsOf(pod.Containers[0], "cni-bin-dir", "cni-conf-dir", "cni-cache-dir", "cni-conf-name", "chained", "own-file", "nri-plugin-dir", "preinstall"))
			assert.Equal(t, want.backend, configOf(t, all)["backend"])
			got := pod.Containers[0].SecurityContext.SELinuxOptions
			if got == nil {
				got = &corev1.SELinuxOptions{}
			}
			assert.Equal(t, want.selinux, *got)
			for _, kind := range []string{"ResourceQuota", "NetworkAttachmentDefinition", "SecurityContextConstraints"} {
				assert.Len(t, all.of(kind), map[bool]int{true: 1}[slices.Contains(want.kinds, kind)], kind)
			}
			if want.keptFrom == nil {
				assert.Nil(t, pod.Affinity)
				return
			}
			terms := pod.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
			assert.Equal(t, []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
				{Key: want.keptFrom[0], Operator: corev1.NodeSelectorOpNotIn, Values: want.keptFrom[1:]},
			}}}, terms)
		})
	}
}

// paths are the mounts, by host path: where, and whether read-only.
func (p platform) paths() map[string]string {
	out := map[string]string{
		p.conf: "/host" + p.conf + " DirectoryOrCreate", p.cache: "/host" + p.cache + " ro DirectoryOrCreate",
		"/var/run/meshcni": "/var/run/meshcni DirectoryOrCreate", "/var/run/nri": "/var/run/nri ro DirectoryOrCreate",
	}
	if !p.noHookDir {
		out["/opt/nri/plugins"] = "/host/opt/nri/plugins DirectoryOrCreate"
	}
	for _, dir := range p.bins {
		out[dir] = "/host" + dir + " Directory"
	}
	return out
}

func (p platform) args() (out []string) {
	for _, dir := range p.bins {
		out = append(out, "--cni-bin-dir=/host"+dir)
	}
	out = append(out, "--cni-conf-dir=/host"+p.conf, "--cni-cache-dir=/host"+p.cache)
	if p.file != "" {
		out = append(out, "--cni-conf-name="+p.file)
	}
	out = append(out, "--chained="+map[bool]string{true: "false", false: "true"}[p.unchained], "--own-file=auto")
	if !p.noHookDir {
		out = append(out, "--nri-plugin-dir=/host/opt/nri/plugins", "--preinstall=capture")
	}
	return out
}

func hostPaths(t testing.TB, pod corev1.PodSpec) map[string]string {
	t.Helper()
	out, volumes := map[string]string{}, map[string]*corev1.HostPathVolumeSource{}
	for _, v := range pod.Volumes {
		if v.HostPath != nil {
			volumes[v.Name] = v.HostPath
		}
	}
	for _, m := range pod.Containers[0].VolumeMounts {
		if v := volumes[m.Name]; v != nil {
			out[v.Path] = m.MountPath + map[bool]string{true: " ro"}[m.ReadOnly] + " " + string(*v.Type)
		}
		delete(volumes, m.Name)
	}
	require.Empty(t, volumes, "not mounted")
	return out
}

// flagsOf are the container's arguments for some flags, in order.
func flagsOf(c corev1.Container, names ...string) (some []string) {
	for _, arg := range c.Args {
		name, _, _ := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
		if slices.Contains(names, name) {
			some = append(some, expand(arg))
		}
	}
	return some
}

func configOf(t testing.TB, all objects) map[string]any {
	t.Helper()
	config := map[string]any{}
	require.NoError(t, yaml.UnmarshalStrict([]byte(settingsOf(t, all).Data["config.yaml"]), &config))
	return config
}

// TestUsersComeFirst: what the user sets holds, whatever the profile says, false
// and empty texts included; null leaves it to the profile.
func TestUsersComeFirst(t *testing.T) {
	t.Parallel()
	all := mustRender(t, values{
		"profile": "openshift", "backend": nil,
		"cni":                         values{"binDirs": []string{"/opt/x"}, "confDir": nil, "chained": true, "confName": ""},
		"networkAttachmentDefinition": values{"enabled": false}, "seLinuxOptions": values{"level": "s0"},
	})
	c := one[appsv1.DaemonSet](t, all, "DaemonSet", "meshcni-node").Spec.Template.Spec.Containers[0]
	assert.Equal(t, []string{"--cni-bin-dir=/host/opt/x", "--cni-conf-dir=/host/etc/cni/multus/net.d", "--chained=true"},
		flagsOf(c, "cni-bin-dir", "cni-conf-dir", "cni-conf-name", "chained"))
	assert.Equal(t, &corev1.SELinuxOptions{Type: "spc_t", Level: "s0"}, c.SecurityContext.SELinuxOptions, "maps are merged")
	assert.Empty(t, all.of("NetworkAttachmentDefinition"))
	assert.Len(t, all.of("SecurityContextConstraints"), 1)
}

// The plugin is put where the runtime starts it by itself, unless the hook is off, or it is not wanted: then it is taken back, so the directory is there
// all the same. Without a directory, and with another product, whose plugin cannot be started so, nothing is touched.
func TestPreinstall(t *testing.T) {
	t.Parallel()
	hook := func(keysAndValues ...any) values {
		v := values{}
		for i := 0; i < len(keysAndValues); i += 2 {
			v[keysAndValues[i].(string)] = keysAndValues[i+1]
		}
		return values{"runtimeHook": v}
	}
	for name, c := range map[string]struct {
		values values
		want   []string // the flags
	}{
		"default":             {nil, []string{"--nri-plugin-dir=/host/opt/nri/plugins", "--preinstall=capture"}},
		"alone":               {alone, []string{"--nri-plugin-dir=/host/opt/nri/plugins", "--preinstall=capture"}},
		"gate":                {hook("mode", "gate"), []string{"--nri-plugin-dir=/host/opt/nri/plugins", "--preinstall=gate"}},
		"capture":             {hook("mode", "capture"), []string{"--nri-plugin-dir=/host/opt/nri/plugins", "--preinstall=capture"}},
		"off":                 {hook("mode", "off"), []string{"--nri-plugin-dir=/host/opt/nri/plugins", "--preinstall=off"}},
		"off, bare":           {hook("mode", false), []string{"--nri-plugin-dir=/host/opt/nri/plugins", "--preinstall=off"}},
		"off, true":           {hook("mode", "off", "preinstall", true), []string{"--nri-plugin-dir=/host/opt/nri/plugins", "--preinstall=capture"}},
		"false":               {hook("preinstall", false), []string{"--nri-plugin-dir=/host/opt/nri/plugins", "--preinstall=off"}},
		"elsewhere":           {hook("pluginDir", "/var/lib/nri"), []string{"--nri-plugin-dir=/host/var/lib/nri", "--preinstall=capture"}},
		"nowhere":             {hook("pluginDir", ""), nil},
		"talos":               {values{"profile": "talos"}, nil},
		"talos, all the same": {values{"profile": "talos"}.with(hook("preinstall", true, "pluginDir", "/opt/nri/plugins")), []string{"--nri-plugin-dir=/host/opt/nri/plugins", "--preinstall=capture"}},
		"another product":     {acme, nil},
	} {
		all := mustRender(t, c.values)
		flags := []string{"nri-plugin-dir", "preinstall"}
		for _, ds := range all.of("DaemonSet") {
			pod := one[appsv1.DaemonSet](t, all, "DaemonSet", ds.GetName()).Spec.Template.Spec
			got := flagsOf(pod.Containers[0], flags...)
			if uninstall := strings.HasSuffix(ds.GetName(), "-uninstall"); uninstall && len(c.want) > 0 {
				assert.Equal(t, c.want[:1], got, "%s: the uninstall", name)
			} else {
				assert.Equal(t, c.want, got, "%s: %s", name, ds.GetName())
			}
			mounted := false
			for _, mount := range hostPaths(t, pod) {
				mounted = mounted || len(c.want) > 0 && mount == strings.TrimPrefix(c.want[0], "--nri-plugin-dir=")+" DirectoryOrCreate"
			}
			assert.Equal(t, len(c.want) > 0, mounted, "%s: %s", name, ds.GetName())
		}
	}
}

// TestPorts: on the host's network they are for nobody else, unless the user wants it so or something is to scrape; the kubelet
// asks none of them; and none is declared, which would keep the next agent from the node.
func TestPorts(t *testing.T) {
	t.Parallel()
	const local, scraped = "127.0.0.1:15014", "[$(POD_IP)]:15014"
	for _, c := range []struct {
		values          values
		health, metrics string
	}{
		{values{}, "127.0.0.1:8000", local},
		{values{"health": values{"host": ""}, "metrics": values{"host": ""}}, ":8000", ":15014"},
		{values{"health": values{"host": "::1", "port": 1}, "metrics": values{"host": "::1", "port": 2}}, "[::1]:1", "[::1]:2"},
		{values{"metrics": values{"serviceMonitor": values{"enabled": true}}}, "127.0.0.1:8000", scraped},
		{values{"metrics": values{"podMonitor": values{"enabled": true}}}, "127.0.0.1:8000", scraped},
		{values{"metrics": values{"service": values{"enabled": true}}}, "127.0.0.1:8000", scraped},
		{values{"metrics": values{"scrapeAnnotations": true}}, "127.0.0.1:8000", scraped},
		{values{"metrics": values{"scrapeAnnotations": true, "host": "10.0.0.1"}}, "127.0.0.1:8000", "10.0.0.1:15014"},
		{values{"metrics": values{"prometheusRule": values{"enabled": true}, "dashboard": values{"enabled": true}}}, "127.0.0.1:8000", local},
		{values{"metrics": values{"enabled": false}}, "127.0.0.1:8000", ""},
		{values{"hostNetwork": false}, ":8000", ":15014"},
		{values{"hostNetwork": false, "health": values{"host": "0.0.0.0"}, "metrics": values{"podMonitor": values{"enabled": true}}}, "0.0.0.0:8000", ":15014"},
	} {
		pod := one[appsv1.DaemonSet](t, mustRender(t, c.values), "DaemonSet", "meshcni-node").Spec.Template.Spec
		agent := pod.Containers[0]
		assert.Equal(t, []string{"--health-address=" + c.health, "--metrics-address=" + c.metrics}, flagsOf(agent, "health-address", "metrics-address"))
		assert.Equal(t, append([]string{"/usr/local/bin/meshcni-node", "started"}, flagsOf(agent, "start-socket")...), agent.StartupProbe.Exec.Command)
		for command, probe := range map[string]*corev1.Probe{"live": agent.LivenessProbe, "ready": agent.ReadinessProbe} {
			assert.Equal(t, append([]string{"/usr/local/bin/meshcni-node", command}, flagsOf(agent, "start-socket")...), probe.Exec.Command)
		}
		assert.Equal(t, corev1.DNSDefault, pod.DNSPolicy)
		assert.Equal(t, c.values["hostNetwork"] == nil, pod.HostNetwork)
		asked := slices.IndexFunc(agent.Env, func(e corev1.EnvVar) bool { return e.Name == "POD_IP" })
		if assert.GreaterOrEqual(t, asked, 0, "its address, which the metrics' may be") {
			assert.Equal(t, "status.podIP", agent.Env[asked].ValueFrom.FieldRef.FieldPath)
		}
		assert.Empty(t, agent.Ports)
	}
}

// TestMonitorsFindTheAgent: by its Service, or by its address, of either family: it declares no port.
func TestMonitorsFindTheAgent(t *testing.T) {
	t.Parallel()
	endpoint := func(kind, list string, v values) map[string]any {
		found := mustRender(t, v).of(kind)
		require.Len(t, found, 1)
		return found[0].Object["spec"].(map[string]any)[list].([]any)[0].(map[string]any)
	}
	services := values{"metrics": values{"port": 9100, "serviceMonitor": values{"enabled": true}}}
	assert.Equal(t, "metrics", endpoint("ServiceMonitor", "endpoints", services)["port"])
	service := one[corev1.Service](t, mustRender(t, services), "Service", "meshcni-node").Spec.Ports[0]
	assert.Equal(t, []any{"metrics", 9100}, []any{service.Name, service.TargetPort.IntValue()})

	pods := values{"metrics": values{"port": 9100, "podMonitor": values{"enabled": true}}}
	assert.NotContains(t, endpoint("PodMonitor", "podMetricsEndpoints", pods.with(values{"hostNetwork": false})), "port")
	onHost := endpoint("PodMonitor", "podMetricsEndpoints", pods)
	assert.NotContains(t, onHost, "port", "Prometheus would keep only pods that declare it")
	for ip, want := range map[string]string{"10.1.2.3": "10.1.2.3:9100", "2001:db8::1": "[2001:db8::1]:9100"} {
		address := ""
		for _, r := range onHost["relabelings"].([]any) {
			rule := r.(map[string]any)
			if rule["targetLabel"] != "__address__" {
				continue
			}
			assert.Equal(t, []any{"__meta_kubernetes_pod_ip"}, rule["sourceLabels"])
			if whole := regexp.MustCompile("^(?:" + rule["regex"].(string) + ")$"); whole.MatchString(ip) { // Prometheus anchors it
				address = whole.ReplaceAllString(ip, rule["replacement"].(string))
			}
		}
		assert.Equal(t, want, address)
	}
}

// TestLabels: the user's come after the chart's, but for those that selectors rely on.
func TestLabels(t *testing.T) {
	t.Parallel()
	all := mustRender(t, options["labels of ours"])
	ds := one[appsv1.DaemonSet](t, all, "DaemonSet", "meshcni-node")
	own := map[string]string{"app.kubernetes.io/name": "meshcni", "app.kubernetes.io/instance": "meshcni", "app.kubernetes.io/component": "node"}
	assert.Equal(t, own, ds.Spec.Selector.MatchLabels)
	for key, want := range own {
		assert.Equal(t, want, ds.Labels[key])
		assert.Equal(t, want, ds.Spec.Template.Labels[key])
	}
	assert.Equal(t, "true", ds.Spec.Template.Labels["sidecar.istio.io/inject"])
	assert.Equal(t, "true", ds.Spec.Template.Annotations["sidecar.istio.io/inject"])
	assert.Equal(t, "15014", ds.Spec.Template.Annotations["prometheus.io/port"])
	assert.Regexp(t, `^meshcni-`, ds.Labels["helm.sh/chart"])
}

// TestNamesThatLookLikeNumbers: a name is a name, whatever YAML makes of it.
func TestNamesThatLookLikeNumbers(t *testing.T) {
	t.Parallel()
	out, err := helm(t, "template", "1e3", chart, "--namespace", "123", "--kube-version", kubeVersion, "--values", values{
		"serviceAccount": values{"name": "0"}, "priorityClassName": "1", "excludeNamespaces": []string{"7", "8e1"}, "image": values{"tag": "1.0"},
		"cni": values{"chained": false}, "networkAttachmentDefinition": values{"enabled": true, "name": "5", "namespaces": []string{"6"}},
		"metrics": values{"serviceMonitor": values{"enabled": true, "namespace": "9"}}, "openshift": values{"scc": "privileged"},
		"repair": values{"mode": "delete", "nodeRate": 1000000, "nodeBurst": 2000000, "annotation": "2", "message": "3"}, "commonLabels": values{"a": "4"},
		"podAnnotations": values{"b": "true"}, "apiServer": values{"host": "10.0", "port": "443"},
	}.write(t))
	require.NoError(t, err)
	all := parse(t, out)[""]
	for _, o := range all {
		assert.IsType(t, "", o.Object["metadata"].(map[string]any)["name"], "%v", o.Object)
		if namespace, ok := o.Object["metadata"].(map[string]any)["namespace"]; ok {
			assert.IsType(t, "", namespace, "%v", o.Object)
		}
	}
	ds := one[appsv1.DaemonSet](t, all, "DaemonSet", "meshcni-node")
	assert.Equal(t, "1e3", ds.Labels["app.kubernetes.io/instance"])
	assert.Equal(t, "0", ds.Spec.Template.Spec.ServiceAccountName)
	assert.Equal(t, "1", ds.Spec.Template.Spec.PriorityClassName)
	agent := ds.Spec.Template.Spec.Containers[0]
	assert.Equal(t, placeholder+"/meshcni/meshcni:1.0", agent.Image)
	assert.Equal(t, []string{"--kubernetes-service-host=10.0", "--kubernetes-service-port=443"}, flagsOf(agent, "kubernetes-service-host", "kubernetes-service-port"))
	for name, want := range map[string]string{"NODE_RATE": "1000000", "NODE_BURST": "2000000", "ANNOTATION": "2", "MESSAGE": "3"} {
		got, _ := value(agent, "MESHCNI_REPAIR_"+name)
		assert.Equal(t, want, got, name)
	}
	assert.Equal(t, []any{"7", "8e1"}, configOf(t, all)["exclude-namespaces"])
	binding := one[rbacv1.RoleBinding](t, all, "RoleBinding", "meshcni-plugin-token")
	assert.Equal(t, []rbacv1.Subject{{Kind: "ServiceAccount", Name: "0", Namespace: "123"}}, binding.Subjects)
	all, err = render(t, values{"excludeNamespaces": []any{"shop", " storage ", "storage"}})
	require.NoError(t, err)
	assert.Equal(t, []any{"shop", "storage"}, configOf(t, all)["exclude-namespaces"], "as --set 'excludeNamespaces={a, b}' has them")
}
