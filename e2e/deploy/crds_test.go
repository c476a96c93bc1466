package deploy_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/meshcni/meshcni/internal/testing/kubetest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// definition is a CustomResourceDefinition in the module that publishes it. It is
// read from the module cache, where the go command verifies it, and nowhere else.
type definition struct{ module, file string }

var definitions = []definition{
	{"github.com/prometheus-operator/prometheus-operator@v0.85.0", "example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml"},
	{"github.com/prometheus-operator/prometheus-operator@v0.85.0", "example/prometheus-operator-crd/monitoring.coreos.com_podmonitors.yaml"},
	{"github.com/prometheus-operator/prometheus-operator@v0.85.0", "example/prometheus-operator-crd/monitoring.coreos.com_prometheusrules.yaml"},
	{"github.com/k8snetworkplumbingwg/network-attachment-definition-client@v1.7.7", "artifacts/networks-crd.yaml"},
	{"github.com/openshift/api@v0.0.0-20251015095338-264e80a2b6e7", "payload-manifests/crds/0000_03_config-operator_01_securitycontextconstraints.crd.yaml"},
}

// download returns the module's directory.
func download(dir, module string) (string, error) {
	var out, errOut bytes.Buffer
	cmd := exec.Command("go", "mod", "download", "-json", module) //nolint:gosec // one of ours
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod")
	cmd.Stdout, cmd.Stderr = &out, &errOut
	var answer struct{ Dir, Error string }
	err := cmd.Run()
	if errRead := json.Unmarshal(out.Bytes(), &answer); errRead != nil || answer.Dir == "" {
		return "", fmt.Errorf("download module %s: %w: %s%s", module, err, answer.Error, errOut.String())
	}
	return answer.Dir, nil
}

// define makes the definitions on the server and waits until it serves them.
func define(t testing.TB, admin *kubetest.Admin) {
	t.Helper()
	elsewhere := t.TempDir() // not this module, whose files the go command would look at
	dirs := map[string]string{}
	netnstest.Require(t, netnstest.Need{Name: "the modules of other projects' definitions", Check: func() error {
		for _, d := range definitions {
			if dirs[d.module] == "" {
				dir, err := download(elsewhere, d.module)
				if err != nil {
					return err
				}
				dirs[d.module] = dir
			}
		}
		return nil
	}})
	for _, d := range definitions {
		text, err := os.ReadFile(filepath.Join(dirs[d.module], filepath.FromSlash(d.file)))
		require.NoError(t, err)
		var crd map[string]any
		require.NoError(t, yaml.Unmarshal(text, &crd))
		admin.Do(t, http.MethodPost, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd, nil)
		spec := crd["spec"].(map[string]any)
		plural := spec["names"].(map[string]any)["plural"].(string)
		path := "/apis/" + spec["group"].(string) + "/v1/" + plural
		require.Eventually(t, func() bool { return admin.Try(http.MethodGet, path, nil, nil) == nil }, netnstest.Patience, 50*time.Millisecond, "%s", path)
	}
}

// resources are the kinds' names in paths.
var resources = map[string]string{
	"NetworkPolicy":               "networkpolicies",
	"SecurityContextConstraints":  "securitycontextconstraints",
	"NetworkAttachmentDefinition": "network-attachment-definitions",
	"ValidatingAdmissionPolicy":   "validatingadmissionpolicies",
}

// path is where objects of the kind are made.
func collection(apiVersion, kind, namespace string) string {
	path := "/apis/" + apiVersion
	if !strings.Contains(apiVersion, "/") {
		path = "/api/" + apiVersion
	}
	if namespace != "" {
		path += "/namespaces/" + namespace
	}
	resource := resources[kind]
	if resource == "" {
		resource = strings.ToLower(kind) + "s"
	}
	return path + "/" + resource
}
