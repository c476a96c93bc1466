// Command rules reads a pod of an Istio mesh and prints its firewall rules, in
// the form that iptables-restore takes. It needs no cluster.
//
//	go run ./examples/rules < examples/pod.yaml
package main

import (
	"fmt"
	"io"
	"os"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/istio"
)

func main() {
	if err := printRules(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func printRules(manifest io.Reader, out io.Writer) error {
	text, err := io.ReadAll(manifest)
	if err != nil {
		return err
	}
	var pod corev1.Pod
	if err := yaml.Unmarshal(text, &pod); err != nil {
		return err
	}
	plan, err := istio.New("kube-system").Plan(dialect.Subject{Pod: &pod}, dialect.Options{})
	if err != nil {
		return err
	}
	if d := plan.Decision; !d.Selected {
		return fmt.Errorf("pod %s/%s is not redirected: %s", pod.Namespace, pod.Name, d.Detail)
	}
	_, err = io.WriteString(out, plan.Ruleset.IPv4.Commented())
	return err
}
