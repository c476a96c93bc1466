package redirectcmd_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/cmd/redirectcmd"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// said is what one call of the program did.
type said struct {
	code        int
	out, errOut string
}

type call struct {
	env   []string
	stdin string
	files map[string]string
}

func (c call) run(t *testing.T, args ...string) said {
	t.Helper()
	var out, errOut bytes.Buffer
	p := redirectcmd.Program{
		Env: c.lookup, Stdin: strings.NewReader(c.stdin), Stdout: &out, Stderr: &errOut, Identity: meshcni.Identity{Version: "v1.2.3"},
		CNIConfDirs: []string{"/nonexistent/net.d"}, // whatever network the machine has
		ReadFile: func(name string) ([]byte, error) {
			if text, ok := c.files[name]; ok {
				return []byte(text), nil
			}
			if strings.HasPrefix(name, os.TempDir()) {
				return os.ReadFile(name)
			}
			return os.ReadFile(filepath.Join("testdata", name))
		},
	}
	return said{p.Main(t.Context(), args), out.String(), errOut.String()}
}

func (c call) lookup(name string) (string, bool) {
	for _, e := range c.env {
		if v, ok := strings.CutPrefix(e, name+"="); ok {
			return v, true
		}
	}
	return "", false
}

// TestProgram is the program's contract: arguments, variables and standard input
// to exit code and what is said where.
func TestProgram(t *testing.T) {
	t.Parallel()
	sandboxed := "apiVersion: v1\nkind: Pod\nmetadata: {name: a, namespace: dev, annotations: {sidecar.istio.io/status: \"{}\"}}\n" +
		"spec: {runtimeClassName: kata, containers: [{name: app}, {name: istio-proxy}]}\n"
	early := "apiVersion: v1\nkind: Pod\nmetadata: {name: a, namespace: dev, annotations: {sidecar.istio.io/status: \"{}\"}}\n" +
		"spec: {initContainers: [{name: fetch-secrets}, {name: istio-validation}], containers: [{name: app}, {name: istio-proxy}]}\n"
	outsider := "apiVersion: v1\nkind: Pod\nmetadata: {name: a, namespace: dev}\nspec: {containers: [{name: app}]}\n"
	deployment := `{"kind": "Deployment", "metadata": {"name": "cart", "namespace": "shop"}, "spec": {"template": {"metadata": {"annotations": {"sidecar.istio.io/status": "{}"}}, "spec": {"containers": [{"name": "istio-proxy", "securityContext": {"runAsUser": 1337}}]}}}}`
	tests := map[string]struct {
		args   []string
		call   call
		code   int
		out    []string // parts of stdout
		errOut []string // parts of stderr
		silent bool     // nothing on stdout
	}{
		"version":         {args: []string{"--version"}, out: []string{"meshcni-redirect v1.2.3\n"}},
		"version command": {args: []string{"version"}, out: []string{"meshcni-redirect v1.2.3\n"}},
		"help":            {args: []string{"--help"}, out: []string{"explain", "rules", "trace", "apply", "check", "cleanup", "validate"}},
		"no command":      {code: 2, errOut: []string{"name a command: apply, check,"}, silent: true},
		"unknown command": {args: []string{"frobnicate"}, code: 2, errOut: []string{`unknown command "frobnicate"`}, silent: true},
		"unknown flag":    {args: []string{"explain", "--frob"}, code: 2, errOut: []string{"unknown flag: --frob"}, silent: true},
		"stray argument":  {args: []string{"explain", "pod.yaml"}, code: 2, errOut: []string{`"pod.yaml": not a code`}, silent: true},
		"all bad common flags at once": {
			args: []string{"explain", "--dialect", "x", "--backend", "y", "--ip", "z", "--uncaptured-family", "w"}, code: 2, silent: true,
			errOut: []string{`unknown dialect "x"`, `backend "y"`, `--ip "z"`, `--uncaptured-family: "w"`, "-f is required"},
		},
		"empty family":       {args: []string{"rules", "-f", "web.yaml", "--uncaptured-family", ""}, code: 2, errOut: []string{"--uncaptured-family"}, silent: true},
		"file missing":       {args: []string{"explain", "-f", "absent.yaml"}, code: 1, errOut: []string{"absent.yaml"}, silent: true},
		"no YAML":            {args: []string{"explain", "-f", "-"}, call: call{stdin: "a: [b"}, code: 1, errOut: []string{"read Pod from standard input"}, silent: true},
		"empty":              {args: []string{"explain", "-f", "-"}, code: 1, errOut: []string{"it is empty"}, silent: true},
		"another kind":       {args: []string{"explain", "-f", "-"}, call: call{stdin: "kind: Service"}, code: 1, errOut: []string{`it is a "Service"`}, silent: true},
		"no template":        {args: []string{"explain", "-f", "-"}, call: call{stdin: "kind: Deployment"}, code: 1, errOut: []string{"the Deployment has no template of pods"}, silent: true},
		"two documents":      {args: []string{"explain", "-f", "-"}, call: call{stdin: outsider + "---\n" + outsider}, code: 1, errOut: []string{"more than one document"}, silent: true},
		"an alias":           {args: []string{"explain", "-f", "-"}, call: call{stdin: "kind: Pod\nmetadata: {name: &n web, annotations: {a: *n}}"}, out: []string{"pod default/web is not in the mesh"}},
		"an alias of itself": {args: []string{"explain", "-f", "-"}, call: call{stdin: "kind: Pod\nmetadata: &n {name: web, annotations: *n}"}, code: 1, errOut: []string{"read Pod from standard input", "the anchor n is in itself"}, silent: true},
		"a scalar":           {args: []string{"explain", "-f", "-"}, call: call{stdin: "pod"}, code: 1, errOut: []string{"read Pod from standard input"}, silent: true},
		"wrong type":         {args: []string{"explain", "-f", "-"}, call: call{stdin: "kind: Pod\nspec: {containers: 3}"}, code: 1, errOut: []string{"containers"}, silent: true},
		"name breaks a line": {args: []string{"explain", "-f", "-"}, call: call{stdin: "kind: Pod\nmetadata: {name: \"a\\nb\"}"}, code: 1, errOut: []string{`"a\nb" is no name`}, silent: true},
		"both from stdin":    {args: []string{"explain", "-f", "-", "--namespace-file", "-"}, code: 2, errOut: []string{"standard input"}, silent: true},
		"namespace file":     {args: []string{"explain", "-f", "web.yaml", "--namespace-file", "-"}, call: call{stdin: "kind: Namespace"}, out: []string{"is in the mesh"}},
		"namespace of another kind": {
			args: []string{"explain", "-f", "web.yaml", "--namespace-file", "-"}, call: call{stdin: "kind: Pod"}, code: 1,
			errOut: []string{"read Namespace from standard input", `it is a "Pod"`}, silent: true,
		},

		"explain in brief": {args: []string{"explain", "-f", "-", "--brief"}, call: call{stdin: outsider}, out: []string{`This pod is not captured, because it has no proxy (no container is named istio-proxy); whether its namespace asks for it is not known here.
What to do:
  - Give the namespace too (--namespace-file), or ask kubectl meshcni explain, which reads it from the cluster
  - To have it in the mesh: kubectl label --overwrite namespace dev istio-injection=enabled
  - Then delete it and create it again from its manifest, since nothing replaces it: kubectl --namespace dev delete pod a
`}},
		"explain in brief, refused": {args: []string{"explain", "-f", "leaky.yaml", "--refuse-proxy-uid", "--brief", "-o", "json"}, code: 1, out: []string{"{\n  \"code\": \"refused\"", `Container \"web\": give it another runAsUser`}},
		"explain a template":        {args: []string{"explain", "-f", "-"}, call: call{stdin: deployment}, out: []string{"The plugin captures this pod", "warning: this is a workload's template", "-j ISTIO_OUTPUT"}},
		"apply a template":          {args: []string{"apply", "-f", "-"}, call: call{stdin: deployment}, code: 1, errOut: []string{"-f -: it is the Deployment cart: only explain, rules and trace take its template"}, silent: true},
		"rules of a template":       {args: []string{"rules", "-f", "-"}, call: call{stdin: deployment}, out: []string{"-j ISTIO_OUTPUT"}, errOut: []string{"warning: this is a workload's template"}},
		"trace of a template":       {args: []string{"trace", "-f", "-", "--dst", "10.96.5.5", "--dport", "80", "--uid", "1000"}, call: call{stdin: deployment}, out: []string{"redirect 15001"}, errOut: []string{"warning: this is a workload's template"}},
		"trace warns":               {args: []string{"trace", "-f", "leaky.yaml", "--dst", "10.96.5.5", "--dport", "80", "--uid", "1000"}, out: []string{"redirect 15001"}, errOut: []string{`WARNING: container "web" bypasses the mesh`, "warning: env ISTIO_META_DNS_CAPTURE"}},
		"explain init containers before the proxy": {
			args: []string{"explain", "-f", "-", "--brief"}, call: call{stdin: early},
			out: []string{`have no network once the pod is captured: "fetch-secrets"`, "native sidecar", "runAsUser", "exclude what they ask for"},
		},
		"explain a sandboxed pod": {
			args: []string{"explain", "-f", "-", "--brief"}, call: call{stdin: sandboxed}, code: 1,
			out: []string{"does not start, because its runtime would take it past the mesh", `its runtime class, "kata"`, "allowSandboxed=true"},
		},
		"explain a sandboxed pod that is let through": {
			args: []string{"explain", "-f", "-", "--allow-sandboxed"}, call: call{stdin: sandboxed},
			out: []string{"its runtime takes its connections past them", `its runtime class, "kata"`},
		},
		"explain outsider": {args: []string{"explain", "-f", "-"}, call: call{stdin: outsider}, out: []string{"pod dev/a is not in the mesh", "no-proxy:"}},
		"explain excluded": {args: []string{"explain", "-f", "-", "--exclude-namespaces", "dev , prod"}, call: call{stdin: outsider}, out: []string{"excluded-namespace:"}},
		"explain excluded by label": {
			args: []string{"explain", "-f", "web.yaml", "--exclude-namespace-selector", "mesh in (off)", "--namespace-file", "-"},
			call: call{stdin: "kind: Namespace\nmetadata: {name: shop, labels: {mesh: \"off\"}}"},
			out:  []string{"is not in the mesh", `namespace-excluded-by-label: namespace "shop" is excluded: its labels match "mesh in (off)"`},
		},
		"rules excluded by label": {
			args: []string{"rules", "-f", "web.yaml", "--exclude-namespace-selector", "mesh", "--namespace-file", "-"},
			call: call{stdin: "kind: Namespace\nmetadata: {labels: {mesh: \"\"}}"}, errOut: []string{"is not in the mesh: namespace-excluded-by-label"}, silent: true,
		},
		"trace excluded by label": {
			args: []string{"trace", "-f", "web.yaml", "--exclude-namespace-selector", "!mesh", "--namespace-file", "-", "--dst", "10.0.0.1", "--dport", "80"},
			call: call{stdin: "kind: Namespace"}, out: []string{"pass", "namespace-excluded-by-label"},
		},
		"explain not excluded by label": {
			args: []string{"explain", "-f", "web.yaml", "--exclude-namespace-selector", "mesh=off", "--namespace-file", "-"},
			call: call{stdin: "kind: Namespace\nmetadata: {labels: {mesh: \"on\"}}"}, out: []string{"is in the mesh"},
		},
		"explain by labels that nobody gave": {
			args: []string{"explain", "-f", "web.yaml", "--exclude-namespace-selector", "mesh=off"}, code: 1,
			out: []string{"is refused", "its namespace is not known", "--namespace-file"},
		},
		"rules by labels that nobody gave": {
			args: []string{"rules", "-f", "web.yaml", "--exclude-namespace-selector", "mesh=off"}, code: 1, errOut: []string{"its namespace is not known"}, silent: true,
		},
		"explain outsider by labels that nobody gave": {args: []string{"explain", "-f", "-", "--exclude-namespace-selector", "mesh=off"}, call: call{stdin: outsider}, out: []string{"no-proxy:"}},
		"bad selector and dialect": {
			args: []string{"rules", "-f", "web.yaml", "--exclude-namespace-selector", "a b", "--dialect", "osm"}, code: 2, errOut: []string{`--exclude-namespace-selector: label selector "a b"`, "osm"}, silent: true,
		},
		"explain bad pod": {args: []string{"explain", "-f", "bad.yaml"}, code: 1, out: []string{"is refused", "\n  annotation sidecar.istio.io/interceptionMode", "\n  annotation traffic.sidecar.istio.io/excludeInboundPorts"}},
		"explain refused by a container": {
			args: []string{"explain", "-f", "leaky.yaml", "--refuse-proxy-uid"}, code: 1,
			out: []string{"pod shop/leaky-1 is refused (istio)", "\n  container \"web\" bypasses the mesh: it runs as the proxy's user, 1337, whose outbound traffic is not redirected\nWhat to do:\n", "or allow such pods: refuseProxyUID=false in the chart's values"},
		},
		"explain the runtime's default": {
			args: []string{"explain", "--dialect", "ambient", "-f", "-", "--refuse-proxy-uid", "-o", "json"},
			call: call{stdin: "metadata: {name: a, labels: {istio.io/dataplane-mode: ambient}}\nspec: {containers: [{name: app}]}\n"},
			out:  []string{`"bypasses": [`, `container \"app\" can bypass the mesh: it does not drop NET_RAW`, "\"bypassCodes\": [\n    \"net-raw\"\n  ]"},
		},
		"explain refused by a mark": {
			args: []string{"explain", "--dialect", "ambient", "-f", "-", "--refuse-net-raw", "-o", "json"},
			call: call{stdin: "metadata: {name: a, labels: {istio.io/dataplane-mode: ambient}}\nspec: {containers: [{name: app}]}\n"}, code: 1,
			out: []string{`"refused": [`, `container \"app\" can bypass the mesh: it does not drop NET_RAW`, "\"bypassCodes\": [\n    \"net-raw\"\n  ]"},
		},
		"rules of who is refused": {args: []string{"rules", "-f", "leaky.yaml", "--refuse-proxy-uid"}, code: 1, errOut: []string{`pod shop/leaky-1: container "web" bypasses the mesh`}, silent: true},
		"trace of who is refused": {
			args: []string{"trace", "-f", "leaky.yaml", "--refuse-proxy-uid", "--dst", "10.0.0.1", "--dport", "80"}, code: 1, silent: true, errOut: []string{`container "web"`},
		},
		"a family that nobody has looked for": {
			args: []string{"explain", "-f", "web.yaml", "--ip", "10.244.1.5"}, out: []string{"WARNING: ipv6 bypasses the mesh if the pod's kernel has it, which is not known here"},
		},
		"is closed wherever it comes up": {
			args: []string{"rules", "-f", "web.yaml", "--ip", "10.244.1.5", "--uncaptured-family", "drop", "--family", "6"}, out: []string{"-p tcp -j DROP"},
		},
		"explain bad value": {args: []string{"explain", "-f", "web.yaml", "-o", "xml"}, code: 2, errOut: []string{`invalid argument "xml" for "-o, --output" flag: not one of text, json`}, silent: true},

		"rules of outsider":    {args: []string{"rules", "-f", "-"}, call: call{stdin: outsider}, errOut: []string{"pod dev/a is not in the mesh: no-proxy"}, silent: true},
		"rules of bad pod":     {args: []string{"rules", "-f", "bad.yaml"}, code: 1, errOut: []string{"interceptionMode", "excludeInboundPorts"}, silent: true},
		"rules format":         {args: []string{"rules", "-f", "web.yaml", "--format", "pf"}, code: 2, errOut: []string{`"pf" for "--format"`}, silent: true},
		"rules family":         {args: []string{"rules", "-f", "web.yaml", "--family", "5"}, code: 2, errOut: []string{`"5" for "--family"`}, silent: true},
		"rules, pod and flags": {args: []string{"rules", "-f", "web.yaml", "-p", "1", "-b", "80"}, code: 2, errOut: []string{"--envoy-port, --istio-inbound-ports: with -f the pod says what the rules are"}, silent: true},

		"all bad rule flags at once": {
			args: []string{"rules", "-p", "0x1", "-u", "root", "-m", "NONE", "-b", "80-90", "-i", "10.0.0.0", "-x", "*", "-k", "-o", "-t", "m"},
			call: call{env: []string{"INVALID_DROP=perhaps", "ISTIO_LOCAL_EXCLUDE_PORTS=1,", "ISTIO_OUTBOUND_OWNER_GROUPS=staff"}}, code: 2, silent: true,
			errOut: []string{
				`-p (--envoy-port)="0x1"`, `-u (--proxy-uid)="root"`, `-m (--istio-inbound-interception-mode)="NONE"`, `-b (--istio-inbound-ports)="80-90"`,
				`-i (--istio-service-cidr)="10.0.0.0"`, `-x (--istio-service-exclude-cidr)="*"`, `-k (--kube-virt-interfaces)="-o"`, `-t (--inbound-tproxy-mark)="m"`,
				`variable INVALID_DROP="perhaps"`, `variable ISTIO_LOCAL_EXCLUDE_PORTS="1,"`, `variable ISTIO_OUTBOUND_OWNER_GROUPS="staff"`,
			},
		},
		"flags that contradict":      {args: []string{"rules", "-p", "15006"}, code: 2, errOut: []string{"15006 is the outbound port too"}, silent: true},
		"no resolver":                {args: []string{"rules", "--redirect-dns"}, call: call{files: map[string]string{"/etc/resolv.conf": "search x\n"}}, code: 2, errOut: []string{"/etc/resolv.conf names no server"}, silent: true},
		"Istio's flags stand alone":  {args: []string{"rules", "--redirect-dns", "false"}, code: 2, errOut: []string{`unexpected argument "false"`}, silent: true},
		"ours may have a value":      {args: []string{"rules", "-f", "leaky.yaml", "--refuse-proxy-uid", "true"}, code: 1, errOut: []string{"runs as the proxy"}, silent: true},
		"DNS needs its other flag":   {args: []string{"rules", "--capture-all-dns"}, errOut: []string{"--capture-all-dns does nothing without --redirect-dns"}, out: []string{"*nat"}},
		"another localhost":          {args: []string{"rules", "--host-ipv4-loopback-cidr", "127.0.0.1/8"}, out: []string{"-d 127.0.0.0/8 -j RETURN", "! -d 127.0.0.0/8 -o lo"}},
		"its older name":             {args: []string{"rules", "--istio-outbound-ipv4-loopback-cidr", "127.3.0.0/16"}, out: []string{"-d 127.3.0.0/16 -j RETURN"}},
		"its variable":               {args: []string{"rules"}, call: call{env: []string{"ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR=127.3.0.0/16"}}, out: []string{"-d 127.3.0.0/16 -j RETURN"}},
		"no localhost":               {args: []string{"rules", "--host-ipv4-loopback-cidr", "10.0.0.0/8"}, code: 2, errOut: []string{`--host-ipv4-loopback-cidr="10.0.0.0/8": not a range of 127.0.0.0/8`}, silent: true},
		"timeout":                    {args: []string{"validate", "--probe-timeout", "5"}, code: 2, errOut: []string{"--probe-timeout=\"5\": not a duration"}, silent: true},
		"a Service's variable":       {args: []string{"rules"}, call: call{env: []string{"ENVOY_PORT=tcp://10.96.0.7:80"}}, out: []string{"--to-ports 15001"}},
		"apply, netns that is none":  {args: []string{"apply", "--netns", "/etc/passwd", "-f", "web.yaml"}, code: 1, errOut: []string{"/etc/passwd", "not a network namespace"}, silent: true},
		"apply, netns that is gone":  {args: []string{"apply", "--netns", "/nowhere", "-f", "web.yaml"}, code: 1, errOut: []string{"/nowhere"}, silent: true},
		"check, the host":            {args: []string{"check", "--netns", "/proc/self/ns/net"}, code: 1, errOut: []string{"the host's own network namespace"}, silent: true},
		"apply, outsider":            {args: []string{"apply", "-f", "-"}, call: call{stdin: outsider}, out: []string{"pod dev/a is not in the mesh: no-proxy", "nothing applied"}},
		"validate, outsider":         {args: []string{"validate", "-f", "-"}, call: call{stdin: outsider}, out: []string{"nothing to validate"}},
		"apply, bad pod":             {args: []string{"apply", "-f", "bad.yaml"}, code: 1, errOut: []string{"interceptionMode"}, silent: true},
		"apply, dry run":             {args: []string{"apply", "--dry-run", "-f", "web.yaml"}, out: []string{"*nat", "COMMIT"}},
		"apply, dry run by variable": {args: []string{"apply", "-f", "web.yaml"}, call: call{env: []string{"DRY_RUN=true"}}, out: []string{"*nat", "COMMIT"}},
		"apply, skip":                {args: []string{"apply", "--skip-rule-apply"}, out: []string{"nothing applied"}},
		"cleanup, dry run":           {args: []string{"cleanup", "--dry-run"}, out: []string{"ISTIO_*"}},

		"trace without destination": {args: []string{"trace", "-f", "web.yaml"}, code: 2, errOut: []string{"--dst is required"}, silent: true},
		"all bad trace flags at once": {
			args: []string{"trace", "-f", "web.yaml", "--direction", "up", "--proto", "x", "--src", "a", "--dst", "b"}, code: 2, silent: true,
			errOut: []string{`--direction "up"`, `protocol "x"`, `--src "a"`, `--dst "b"`},
		},
		"trace, packet twice":    {args: []string{"trace", "-f", "web.yaml", "--packets", "-", "--dst", "::1"}, code: 2, errOut: []string{"--dst: with --packets"}, silent: true},
		"trace, stdin twice":     {args: []string{"trace", "-f", "-", "--packets", "-"}, code: 2, errOut: []string{"standard input"}, silent: true},
		"trace, mixed families":  {args: []string{"trace", "-f", "web.yaml", "--src", "::1", "--dst", "1.1.1.1"}, code: 1, errOut: []string{"different families"}, silent: true},
		"trace, outsider":        {args: []string{"trace", "-f", "-", "--dst", "1.1.1.1", "-o", "json"}, call: call{stdin: outsider}, out: []string{`"verdict": "pass"`, `"path": []`, `"reason": "no-proxy: `}},
		"trace, redirected":      {args: []string{"trace", "-f", "web.yaml", "--dst", "10.0.0.1", "--dport", "80", "--uid", "1000"}, out: []string{"redirect 15001: ", "nat/ISTIO_OUTPUT:"}},
		"trace, in":              {args: []string{"trace", "-f", "web.yaml", "--direction", "in", "--src", "10.0.0.9", "--dst", "10.244.1.5", "--dport", "8080", "-o", "json"}, out: []string{`"to_port": 15006`}},
		"trace, own address":     {args: []string{"trace", "-f", "web.yaml", "--dst", "10.244.1.5", "--dport", "8080", "--uid", "1337"}, out: []string{"redirect 15006: "}},
		"trace, other interface": {args: []string{"trace", "-f", "web.yaml", "--dst", "10.0.0.1", "--interface", "net1"}, out: []string{"pass: interface is excluded"}},
		"trace, chart":           {args: []string{"trace", "-f", "web.yaml", "--dst", "10.0.0.1", "--dport", "80", "-o", "mermaid"}, out: []string{"flowchart TD", "class raw_OUTPUT_1"}},
		"trace, connection, out": {
			args: []string{"trace", "--connection", "-f", "web.yaml", "--dst", "10.0.0.1", "--dport", "80", "--uid", "1000"},
			out: []string{
				"established: between 10.244.1.5:40000 in the pod (uid 1000 gid 0) and 127.0.0.1:15001 in the pod (uid 1337 gid 1337)",
				"answer, established: 127.0.0.1:15001 -> 10.244.1.5:40000, from pod to pod, as 10.0.0.1:80 -> 10.244.1.5:40000",
				"the proxy opens a connection of its own: established: between 10.244.1.5:40001 in the pod (uid 1337 gid 1337) and 10.0.0.1:80 behind eth0",
			},
		},
		"trace, connection, in": {
			args: []string{"trace", "--connection", "-f", "web.yaml", "--direction", "in", "--dst", "10.244.1.5", "--dport", "8080", "-o", "json"},
			out:  []string{`"verdict": "established"`, `"port": 15006`, `"what": "later answer"`, `"local": "127.0.0.6:`, `"configuration"`},
		},
		"trace, connection, outsider": {
			args: []string{"trace", "--connection", "-f", "-", "--dst", "1.1.1.1", "--dport", "80"}, call: call{stdin: outsider},
			out: []string{"established: between", "1.1.1.1:80 behind eth0 (no-proxy: "},
		},
		"trace, connection, lines": {
			args: []string{"trace", "--connection", "-f", "web.yaml", "--packets", "-"},
			call: call{stdin: `{"direction":"out","proto":"tcp","dst":"10.0.0.1","dport":80,"uid":1000}`}, out: []string{`{"verdict":"established",`},
		},
		"trace, connection, chart": {
			args: []string{"trace", "--connection", "-f", "web.yaml", "--dst", "1.1.1.1", "--dport", "80", "-o", "mermaid"},
			code: 2, errOut: []string{"--output mermaid"}, silent: true,
		},
		"trace, connection without port": {
			args: []string{"trace", "--connection", "-f", "web.yaml", "--dst", "1.1.1.1"}, code: 1, errOut: []string{"no destination port"}, silent: true,
		},
		"trace, chart for no one": {args: []string{"trace", "-f", "-", "--dst", "10.0.0.1", "-o", "mermaid"}, call: call{stdin: outsider}, silent: true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := tt.call.run(t, tt.args...)
			assert.Equal(t, tt.code, got.code, "%s%s", got.out, got.errOut)
			for _, part := range tt.out {
				assert.Contains(t, got.out, part)
			}
			for _, part := range tt.errOut {
				assert.Contains(t, got.errOut, part)
			}
			if tt.silent {
				assert.Empty(t, got.out)
			}
		})
	}
}

// TestTraceLines: one answer a line, in order, and a bad line spoils no other.
func TestTraceLines(t *testing.T) {
	t.Parallel()
	in := strings.Join([]string{
		`{"direction":"out","proto":"tcp","dst":"10.96.5.5","dport":80,"uid":1000,"gid":1000}`,
		``,
		`{"direction":"out","proto":"tcp","dst":"10.96.5.5","dport":80,"uid":1337,"gid":1337}`,
		`{"direction":"sideways","proto":"tcp","dst":"10.96.5.5"}`,
		`{"direction":"out","protocol":"tcp","dst":"10.96.5.5"}`,
		`not JSON`,
		`{"direction":"in","proto":"tcp","src":"10.244.2.7","sport":40000,"dst":"10.244.1.5","dport":15020,"in_interface":"eth0"}`,
	}, "\n")
	got := call{stdin: in}.run(t, "trace", "-f", "web.yaml", "--packets", "-")
	assert.Equal(t, 1, got.code)
	assert.Contains(t, got.errOut, "3 of 7 lines could not be traced")
	lines := strings.Split(strings.TrimSpace(got.out), "\n")
	require.Len(t, lines, 6)
	var first struct {
		Verdict string   `json:"verdict"`
		ToPort  int      `json:"to_port"`
		Path    []string `json:"path"`
		Reason  string   `json:"reason"`
	}
	require.NoError(t, json.Unmarshal([]byte(lines[0]), &first))
	assert.Equal(t, "redirect", first.Verdict)
	assert.Equal(t, 15001, first.ToPort)
	assert.Contains(t, first.Path, "nat/OUTPUT:1")
	assert.NotEmpty(t, first.Reason)
	assert.Contains(t, lines[1], `"verdict":"pass"`)
	for i, part := range map[int]string{2: "line 4: ", 3: "line 5: ", 4: "line 6: "} {
		assert.Contains(t, lines[i], `{"error":"`+part)
	}
	assert.Contains(t, lines[5], `"verdict":"pass"`)
}

// TestFlagsAndVariables: the two forms, and what wins; unset, empty and * are
// three different things.
func TestFlagsAndVariables(t *testing.T) {
	t.Parallel()
	rules := func(t *testing.T, c call, args ...string) string {
		t.Helper()
		got := c.run(t, append([]string{"rules", "--ip", "10.244.1.5"}, args...)...)
		require.Zero(t, got.code, got.errOut)
		return got.out
	}
	plain := rules(t, call{})
	same := map[string]struct {
		env  []string
		args []string
	}{
		"defaults said":   {args: []string{"-p", "15001", "-z", "15006", "-e", "15008", "-u", "1337", "-g", "1337", "-m", "REDIRECT", "-b", "*", "-d", "15020,15021,15090", "-i", "*", "-x", "", "-o", "15020", "-q", "", "-k", "", "-c", "", "-t", "1337", "-r", "133"}},
		"long names":      {args: []string{"--envoy-port=15001", "--inbound-capture-port=15006", "--inbound-tunnel-port=15008", "--proxy-uid=1337", "--proxy-gid=1337", "--istio-inbound-interception-mode=REDIRECT", "--istio-inbound-ports=*", "--istio-local-exclude-ports=15020,15021,15090", "--istio-service-cidr=*", "--istio-service-exclude-cidr=", "--istio-local-outbound-ports-exclude=15020", "--istio-outbound-ports=", "--kube-virt-interfaces=", "--istio-exclude-interfaces="}},
		"variables":       {env: []string{"ENVOY_PORT=15001", "INBOUND_CAPTURE_PORT=15006", "INBOUND_TUNNEL_PORT=15008", "PROXY_UID=1337", "PROXY_GID=1337", "ISTIO_INBOUND_INTERCEPTION_MODE=REDIRECT", "ISTIO_INBOUND_PORTS=*", "ISTIO_LOCAL_EXCLUDE_PORTS=15020,15021,15090", "ISTIO_SERVICE_CIDR=*", "ISTIO_SERVICE_EXCLUDE_CIDR=", "ISTIO_LOCAL_OUTBOUND_PORTS_EXCLUDE=15020", "ISTIO_OUTBOUND_OWNER_GROUPS=*", "ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE=", "DUAL_STACK=false", "INVALID_DROP="}},
		"off again":       {args: []string{"--drop-invalid=false"}, env: []string{"INVALID_DROP=1"}},
		"a flag wins":     {args: []string{"-p", "15001"}, env: []string{"ENVOY_PORT=16001"}},
		"groups as users": {args: []string{"-u", "1337"}},
	}
	for name, tt := range same {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			assert.Equal(t, plain, rules(t, call{env: tt.env}, tt.args...))
		})
	}
	resolv := map[string]string{"/etc/resolv.conf": "# pod\nnameserver 10.96.0.10\nsearch a b\nnameserver fe80::1%eth0\nnameserver 10.96.0.10\n"}
	differ := map[string]struct {
		call     call
		args     []string
		has, not []string
	}{
		"no inbound":           {args: []string{"-b", ""}, not: []string{"ISTIO_INBOUND"}},
		"no inbound, env":      {call: call{env: []string{"ISTIO_INBOUND_PORTS="}}, not: []string{"ISTIO_INBOUND"}},
		"some inbound":         {args: []string{"-b", "80, 443"}, has: []string{"--dports 80,443 -j ISTIO_IN_REDIRECT"}, not: []string{"15021"}},
		"inbound is all said":  {args: []string{"-b", "*"}, has: []string{"--dport 15020 -j RETURN"}, not: []string{"15021"}},
		"outbound is all said": {args: []string{"-i", "*"}, has: []string{"15021"}, not: []string{"--dport 15020 -j RETURN"}},
		"none excluded":        {args: []string{"-d", ""}, not: []string{"15021"}},
		"no outbound":          {args: []string{"-i", ""}, not: []string{"-j ISTIO_REDIRECT"}},
		"outbound ports":       {args: []string{"-i", "", "-q", "3306"}, has: []string{"--dport 3306 -j ISTIO_REDIRECT"}},
		"excluded port":        {args: []string{"-o", "6379"}, has: []string{"--dport 6379 -j RETURN"}, not: []string{"--dport 15020 -j RETURN"}},
		"several ids":          {args: []string{"-u", "1337,2000", "-g", "3000"}, has: []string{"--uid-owner 2000", "--gid-owner 3000"}, not: []string{"--gid-owner 1337"}},
		"groups follow":        {args: []string{"-u", "2000"}, has: []string{"--gid-owner 2000"}, not: []string{"1337"}},
		"user 0":               {args: []string{"-u", "0"}, has: []string{"--uid-owner 0"}},
		"owner groups":         {call: call{env: []string{"ISTIO_OUTBOUND_OWNER_GROUPS=5,6"}}, has: []string{"! --gid-owner 5", "! --gid-owner 6"}},
		"groups excluded":      {call: call{env: []string{"ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE=7"}}, has: []string{"--gid-owner 7 -j RETURN"}},
		"interfaces":           {args: []string{"-k", "virt0", "-c", "net1"}, has: []string{"-i virt0", "-i net1 -j RETURN"}},
		"tproxy":               {args: []string{"-m", "TPROXY", "-t", "0x7", "-r", "77"}, has: []string{"--tproxy-mark 0x7/", "lookup 77"}},
		"invalid":              {args: []string{"--drop-invalid"}, has: []string{"--ctstate INVALID -j DROP"}},
		"invalid, env":         {call: call{env: []string{"INVALID_DROP=1"}}, has: []string{"--ctstate INVALID -j DROP"}},
		"all DNS":              {args: []string{"--redirect-dns", "--capture-all-dns"}, has: []string{"--dport 53 -j REDIRECT --to-ports 15053"}},
		"the pod's DNS":        {args: []string{"--redirect-dns"}, call: call{files: resolv}, has: []string{"-d 10.96.0.10/32 -p udp -m udp --dport 53 -j REDIRECT --to-ports 15053"}},
		"all DNS, env":         {args: []string{"--capture-all-dns"}, call: call{env: []string{"ISTIO_META_DNS_CAPTURE=true"}}, has: []string{"--dport 53 -j REDIRECT --to-ports 15053"}},
		"dual stack":           {args: []string{"--dual-stack"}, has: []string{"# ipv6"}},
		"dual stack, env":      {call: call{env: []string{"ISTIO_DUAL_STACK=true"}}, has: []string{"# ipv6"}},
	}
	for name, tt := range differ {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := rules(t, tt.call, tt.args...)
			for _, part := range tt.has {
				assert.Contains(t, got, part)
			}
			for _, part := range tt.not {
				assert.NotContains(t, got, part)
			}
			assert.NotEqual(t, plain, got, "the flag has an effect")
		})
	}
}

// TestGroupsFollowUsers only in a mesh whose rules go by groups too: in others a rule for one would let a process of
// that group bypass the mesh, and differ from what the plugin makes.
func TestGroupsFollowUsers(t *testing.T) {
	t.Parallel()
	for dialect, groups := range map[string]bool{"istio": true, "linkerd": false} {
		for _, args := range [][]string{{}, {"--proxy-uid", "1500"}} {
			got := call{}.run(t, append([]string{"rules", "--ip", "10.244.1.5", "--dialect", dialect}, args...)...)
			require.Zero(t, got.code, got.errOut)
			assert.Equal(t, groups, strings.Contains(got.out, "--gid-owner"), "%s %v\n%s", dialect, args, got.out)
		}
	}
}
