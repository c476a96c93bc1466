//go:build linux

package nodecmd

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/internal/diagnosis/bundle"
	"github.com/meshcni/meshcni/internal/node/attachment"
	"github.com/meshcni/meshcni/internal/testing/hostroottest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/status"
)

// unpacked are the files of a bundle, by their names below its directory.
func unpacked(t *testing.T, archive []byte) map[string]string {
	t.Helper()
	gz, err := gzip.NewReader(bytes.NewReader(archive))
	require.NoError(t, err)
	files := map[string]string{}
	for r := tar.NewReader(gz); ; {
		h, err := r.Next()
		if err == io.EOF { //nolint:errorlint // as archive/tar says
			return files
		}
		require.NoError(t, err)
		text, err := io.ReadAll(r)
		require.NoError(t, err)
		name, ok := strings.CutPrefix(h.Name, "meshcni-support/")
		require.True(t, ok, h.Name)
		require.NotContains(t, files, name)
		assert.Equal(t, fs.FileMode(0o600), h.FileInfo().Mode())
		files[name] = string(text)
	}
}

// state is all that is in a directory.
func state(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	require.NoError(t, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			text, readErr := os.ReadFile(path)
			info, _ := e.Info()
			all[path], err = info.Mode().String()+string(text), readErr
		}
		return err
	}))
	return all
}

func token(claims string) string {
	part := func(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }
	return part(`{"alg":"RS256"}`) + "." + part(claims) + "." + part("signature of the token")
}

// TestSupportBundle: all that helps is there, and no secret, wherever one is.
func TestSupportBundle(t *testing.T) {
	dir, env := node(t)
	secrets := map[string]string{
		"the agent's token":         token(`{"iat":1700000000,"exp":1700003600,"sub":"agent"}`),
		"the plugin's token":        token(`{"iat":1700000000,"exp":1700007200,"sub":"plugin"}`),
		"the plugin's opaque key":   "hunter2-correct-horse",
		"etcd's password":           "etcd pass phrase",
		"etcd's user":               "etcd-admin:hunter3",
		"a token of calico":         "plain lower case words",
		"under a harmless name":     "not-a-word-of-it",
		"a number":                  "8271635409",
		"in an unknown plugin":      "quiet.as.a.mouse",
		"in a list":                 "second of the list",
		"in an unknown key":         "ours but unknown",
		"in our own kubernetes":     "inside kubernetes",
		"in a delegate":             "delegated secret",
		"in no JSON":                "broken-file-secret",
		"in another's kubeconfig":   "calico-bearer-words",
		"in an annotation":          "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
		"in a URL":                  "joe:opensesame",
		"in a header":               "YWxhZGRpbjpvcGVu",
		"in words":                  "letmein99",
		"in a line":                 "0a1b2c3d4e5f60718293a4b5c6d7e8f9",
		"in the runtime's cache":    "cached conf secret",
		"in the runtime's args":     "cached arg secret",
		"in the configuration":      "config file secret",
		"in the template":           "template's secret",
		"in a state of the agent's": "status-s3cret-T0ken-abcdef",
		"in an answer":              "AKIAIOSFODNN7EXAMPLE",
		"a key":                     "MIIEvQIBADANBgkqhkiG9w0",
	}
	S := func(name string) string { require.Contains(t, secrets, name); return secrets[name] }
	write := func(name, text string) {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	entry := `{"type":"meshcni","dialect":"linkerd","api_key":"` + S("in an unknown key") + `","kubernetes":{"exclude_namespaces":["kube-system"],"kubeconfig":"/run/kubeconfig","token":"` + S("in our own kubernetes") + `"}}`
	network := `{"name":"k8s-pod-network","cniVersion":"1.0.0","plugins":[{"type":"calico","mtu":1440,"etcd_endpoints":"https://` + S("etcd's user") + `@10.0.0.1:2379",
		"etcd_password":"` + S("etcd's password") + `","kubernetes":{"token":"` + S("a token of calico") + `"},"ipam":{"type":"host-local","subnet":"10.1.0.0/16","key":"` + S("under a harmless name") + `"},
		"pin":` + S("a number") + `,"args":["first","` + S("in a list") + `"],"x":"` + S("in an unknown plugin") + `","delegate":{"type":"vlan","auth":"` + S("in a delegate") + `"}},` + entry + `]}`
	write("sa/token", S("the agent's token"))
	write("run/kubeconfig", `{"clusters":[{"cluster":{"server":"https://10.96.0.1:443"}}],"users":[{"user":{"token":"`+S("the plugin's token")+`","exec":{"env":[{"value":"`+S("the plugin's opaque key")+`"}]}}}]}`)
	write("run/types", "meshcni\n")
	write("net.d/10-calico.conflist", network)
	write("net.d/10-calico.conf.meshcni-saved", network)
	write("net.d/99-broken.conflist.bak", "token: "+S("in no JSON"))
	write("net.d/calico-kubeconfig", "users:\n- user: {token: "+S("in another's kubeconfig")+"}\n")
	write("run/plugin.log", `{"time":"2026-01-01T00:00:00Z","level":"ERROR","msg":"failed","pod":"cart-7d9f8b6c5-x2x9k","namespace":"shop","container_id":"5ad0`+strings.Repeat("c0ffee", 10)+`","error":"annotation a=\"`+S("in an annotation")+
		`\": get https://`+S("in a URL")+`@proxy: Authorization: Bearer `+S("in a header")+`, password=`+S("in words")+`, `+S("in another's kubeconfig")+`","api_token":"`+S("in the configuration")+`"}
`+"panic: "+S("in a line")+" and "+S("the plugin's token")+`
-----BEGIN PRIVATE KEY----- `+S("a key")+` -----END PRIVATE KEY-----
`)
	write("run/plugin.log.1", `{"msg":"decision","reason":"no-proxy","detail":"an older one"}`+"\n")
	write("run/status.json", `{"ready":false,"news":[{"kind":"readiness","code":"write-failed","text":"`+S("in a state of the agent's")+`"}],"token":"`+S("in words")+`"}`)
	cached, err := json.Marshal(map[string]any{
		"kind": "cniCacheV1", "config": []byte(strings.ReplaceAll(network, S("etcd's password"), S("in the runtime's cache"))), "networkName": "k8s-pod-network",
		"containerId": "c0ffee", "ifName": "eth0", "cniArgs": [][]string{{"K8S_POD_NAMESPACE", "shop"}, {"K8S_POD_NAME", "cart"}, {"X", S("in the runtime's args")}},
	})
	require.NoError(t, err)
	write("cache/results/k8s-pod-network-c0ffee-eth0", string(cached))
	write("config/config.yaml", "dialect: linkerd\nexclude-namespaces: [kube-system]\npasswort: "+S("in the configuration")+"\n")
	write("config/plugin.json", `{"type":"meshcni","extra":"`+S("in the template")+`"}`)
	require.NoError(t, attachment.Open(dir+"/run").Write(attachment.Record{
		ID:  attachment.ID{Network: "k8s-pod-network", ContainerID: "c0ffee", IfName: "eth0"},
		Pod: status.ID{Namespace: "shop", Name: "cart", UID: "u1"}, Reason: "no-proxy", By: "ADD", Unusable: []string{"ip addr " + S("in an answer")},
	}))
	agent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/readyz" {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_, _ = io.WriteString(w, "token-expired: it has expired\nkey="+S("in an answer")+"\nmeshcni_ready 0\n")
	}))
	defer agent.Close()
	for key, value := range map[string]string{
		"CONFIG": dir + "/config/config.yaml", "PLUGIN_CONFIG": dir + "/config/plugin.json", "METRICS_ADDRESS": agent.Listener.Addr().String(), "NODE_NAME": "node-1",
		"HEALTH_ADDRESS": agent.Listener.Addr().String(), "SOMETHING": S("in words"),
	} {
		env["MESHCNI_"+key] = value
	}
	before := state(t, dir)
	code, archive, stderr := run(t, env, "support-bundle", "--pod", "shop/absent")
	require.Equal(t, 0, code, stderr)
	assert.Empty(t, stderr)
	assert.Equal(t, before, state(t, dir), "it changes nothing")

	files := unpacked(t, []byte(archive))
	for name, text := range files {
		for what, secret := range secrets {
			assert.NotContains(t, text, secret, "%s, in %s", what, name)
			assert.NotContains(t, text, base64.StdEncoding.EncodeToString([]byte(secret)), "%s, in %s", what, name)
		}
	}
	shown := new(bundle.Scrubber).Text(dir) // a test's directory has a name like a token's
	for name, parts := range map[string][]string{
		"version.txt":                        {"meshcni-node ", `node "node-1"`},
		"settings.txt":                       {"dialect: linkerd\n", "cni-conf-dir: " + dir + "/net.d\n", "run-dir: " + dir + "/run\n", "backend: auto\n"},
		"config.yaml":                        {"dialect: linkerd\n", "- kube-system\n", "passwort: REDACTED"},
		"entry-wanted.json":                  {`"extra": "REDACTED"`, `"type": "meshcni"`},
		"net.d/list.txt":                     {`"10-calico.conflist"`, `"calico-kubeconfig"`, "-rw-------"},
		"net.d/installed.txt":                {"the entry is in " + dir + "/net.d/10-calico.conflist\n", "unknown keys: api_key, kubernetes.token\n"},
		"net.d/10-calico.conflist":           {`"type": "calico"`, `"mtu": 1440`, `"subnet": "10.1.0.0/16"`, `"dialect": "linkerd"`, `"kube-system"`, `"kubeconfig": "/run/kubeconfig"`, `"x": "REDACTED"`, `"type": "vlan"`},
		"net.d/10-calico.conf.meshcni-saved": {`"type": "calico"`},
		"run/kubeconfig.txt":                 {`server "https://10.96.0.1:443"`, `user with "token", issued at 2023-11-14 22:13:20 and valid until 2023-11-15 00:13:20 UTC`},
		"run/plugin.log":                     {`"pod":"cart-7d9f8b6c5-x2x9k"`, `"namespace":"shop"`, `"container_id":"5ad0c0ffeec0REDACTED"`, `annotation a=`, "panic: REDACTED and REDACTED"},
		"run/plugin.log.1":                   {"an older one"},
		"run/status.json":                    {`"code":"write-failed","text":"REDACTED"`},
		"run/attachments.jsonl":              {`"name":"cart"`, `"reason":"no-proxy"`},
		"files.txt":                          {`"plugin.log"`, `"meshcni"`, "  " + dir + "/image/meshcni\n"},
		"cni-cache.txt":                      {`pod "shop/cart"`, "with the plugin meshcni"},
		"agent/healthz.txt":                  {"200 OK", "meshcni_ready 0"},
		"agent/readyz.txt":                   {"503 Service Unavailable", "token-expired: it has expired"},
		"agent/metrics.txt":                  {"meshcni_ready 0"},
		"host/kernel.txt":                    {"Linux version", "nf_conntrack_max"},
		"host/programs.txt":                  {"iptables"},
		"index.txt":                          {" run/plugin.log\n", " settings.txt\n"},
		"errors.txt": {
			`settings.txt: reading the configuration `, "passwort", "net.d/99-broken.conflist.bak: no JSON, or no single object, so it is left out: 25 bytes\n", "pods/shop/absent: the plugin has no record of the pod\n",
		},
	} {
		for _, part := range parts {
			assert.Contains(t, strings.ReplaceAll(files[name], shown, dir), part, name)
		}
	}
	assert.NotContains(t, files, "net.d/calico-kubeconfig")
	assert.NotContains(t, files, "run/kubeconfig")
}

// TestSupportBundleOfNothing: no agent, no directories: what is missing is said, and all else is there.
func TestSupportBundleOfNothing(t *testing.T) {
	dir := t.TempDir()
	env := map[string]string{"MESHCNI_METRICS_ADDRESS": "127.0.0.1:1", "MESHCNI_HEALTH_ADDRESS": "127.0.0.1:1", "MESHCNI_CONFIG": dir + "/absent.yaml"}
	for _, name := range []string{"BIN_SOURCE_DIR", "CNI_BIN_DIR", "CNI_CONF_DIR", "CNI_CACHE_DIR", "RUN_DIR", "SERVICE_ACCOUNT_DIR"} {
		env["MESHCNI_"+name] = dir + "/absent"
	}
	name := filepath.Join(dir, "bundle.tar.gz")
	code, stdout, stderr := run(t, env, "support-bundle", "-o", name)
	require.Equal(t, 0, code, stderr)
	assert.Empty(t, stdout)
	archive, err := os.ReadFile(name)
	require.NoError(t, err)
	info, err := os.Stat(name)
	require.NoError(t, err)
	assert.Equal(t, fs.FileMode(0o600), info.Mode())
	files := unpacked(t, archive)
	for _, part := range []string{
		"settings.txt: reading the configuration", "run/kubeconfig.txt: ", "net.d/list.txt: ", "files.txt: ", "run/plugin.log: ", "cni-cache.txt: ", "agent/readyz.txt: ",
	} {
		assert.Contains(t, files["errors.txt"], part)
	}
	assert.Contains(t, files["settings.txt"], "run-dir: "+new(bundle.Scrubber).Text(dir)+"/absent\n")
	assert.Contains(t, files["net.d/installed.txt"], "is not there")

	code, _, stderr = run(t, env, "support-bundle", "-o", name)
	assert.Equal(t, 1, code, "it is there already")
	assert.Contains(t, stderr, name)
	for _, bad := range []string{"cart", "/cart", "shop/", "a/b/c", "shop/../x"} {
		code, _, stderr = run(t, env, "support-bundle", "--pod", bad)
		assert.Equal(t, 2, code, bad)
		assert.Contains(t, stderr, "NAMESPACE/NAME")
	}
}

// TestSupportBundleIsBounded: a node's logs may have any size.
func TestSupportBundleIsBounded(t *testing.T) {
	dir, env := node(t)
	require.NoError(t, os.MkdirAll(dir+"/run", 0o755))
	line := `{"msg":"decision","detail":"` + strings.Repeat("word ", 200) + `"}` + "\n"
	for _, name := range []string{"plugin.log", "plugin.log.1", "plugin.log.2"} {
		require.NoError(t, os.WriteFile(dir+"/run/"+name, []byte(strings.Repeat(line, 3000)+`{"msg":"the last"}`+"\n"), 0o600))
	}
	require.NoError(t, os.WriteFile(dir+"/net.d/00-huge.conflist", bytes.Repeat([]byte(" "), 2<<20), 0o600))
	code, archive, stderr := run(t, env, "support-bundle")
	require.Equal(t, 0, code, stderr)
	files := unpacked(t, []byte(archive))
	for _, name := range []string{"run/plugin.log", "run/plugin.log.1", "run/plugin.log.2"} {
		assert.LessOrEqual(t, len(files[name]), 1<<20)
		assert.True(t, strings.HasSuffix(files[name], `{"msg":"the last"}`+"\n"), name)
		assert.True(t, strings.HasPrefix(files[name], `{"msg":"decision"`), "whole lines")
		assert.Contains(t, files["errors.txt"], name+": only the last 1048576 of ")
	}
	assert.Contains(t, files["errors.txt"], "net.d/00-huge.conflist: "+new(bundle.Scrubber).Text(dir)+"/net.d/00-huge.conflist has 2097152 bytes, more than 1048576")
}

// TestSupportBundleOfPods: the live rules of a pod, by either backend, and how they differ from what ADD set up; by the
// host's programs where there are none.
func TestSupportBundleOfPods(t *testing.T) {
	netnstest.Require(t, netnstest.Root, netnstest.IPv6, netnstest.Binary("iptables-nft-restore"))
	dir, env := node(t)
	host := hostroottest.New(t, hostroottest.Iptables("nft"))
	rs := redirect.Default().MustRuleset()
	for name, backend := range map[string]ruleset.Backend{"cart": ruleset.BackendIptablesNFT, "web": ruleset.BackendNftables} {
		w := netnstest.NewWorld(t, netnstest.Options{})
		b, err := apply.Choose(t.Context(), w.Pod, apply.Options{Backend: backend, Runner: w.Pod.Sandbox()})
		require.NoError(t, err)
		_, err = b.Apply(t.Context(), rs)
		require.NoError(t, err)
		r := attachment.Record{
			ID:    attachment.ID{Network: "k8s", ContainerID: name, IfName: "eth0"},
			NetNS: attachment.NetNS{Path: w.Pod.Path(), Dev: w.Pod.ID().Dev, Ino: w.Pod.ID().Ino},
			Pod:   status.ID{Namespace: "shop", Name: name}, Selected: true, Reason: "selected", By: "ADD", Time: time.Now(),
		}
		r.Applied(backend, rs, nil)
		require.NoError(t, attachment.Open(dir+"/run").Write(r))
		if backend == ruleset.BackendIptablesNFT {
			other := redirect.Default()
			other.Outbound.ExcludePorts = redirect.Ports(9)
			_, err = b.Apply(t.Context(), other.MustRuleset())
			require.NoError(t, err)
		}
	}
	gone := attachment.Record{
		ID: attachment.ID{Network: "k8s", ContainerID: "gone", IfName: "eth0"}, NetNS: attachment.NetNS{Path: "/run/netns/absent", Dev: 4, Ino: 1},
		Pod: status.ID{Namespace: "shop", Name: "gone", UID: "00000000-0000-0000-0000-000000000000"}, Reason: "no-proxy", By: "ADD",
	}
	require.NoError(t, attachment.Open(dir+"/run").Write(gone))
	code, archive, stderr := run(t, env, "support-bundle", "--host-root", host, "--pod", "shop/cart", "--pod", "shop/web", "--pod", "shop/gone")
	require.Equal(t, 0, code, stderr)
	files := unpacked(t, []byte(archive))
	cart, web := files["pods/shop_cart-1.json"], files["pods/shop_web-1.json"]
	assert.Contains(t, cart, `"backend": "iptables-nft"`)
	assert.Contains(t, cart, `--dport 9 `)
	assert.Regexp(t, `"differences": \[\s+"ipv4 nat/.*unexpected`, cart)
	assert.Contains(t, web, `"backend": "nftables"`)
	assert.Contains(t, web, `"ours": true`)
	assert.Contains(t, web, `"differences": []`)
	assert.Contains(t, files["errors.txt"], "pods/shop_gone-1.json: ")
	assert.Contains(t, files["host/programs.txt"], "iptables v")
}
