//go:build linux

package nodecmd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/cmd/internal/cli"
	"github.com/meshcni/meshcni/cmd/internal/proof"
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/node/judge"
	"github.com/meshcni/meshcni/internal/text/truncate"
	"github.com/meshcni/meshcni/internal/text/visible"
	"github.com/meshcni/meshcni/internal/validate"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// proveCommand makes the command of the pods of "kubectl meshcni test". It is hidden because nobody else has a use for it.
func (p Program) proveCommand() *cobra.Command {
	var question, message string
	var outside time.Duration
	c := &cobra.Command{
		Use: "prove", Short: "prove that this pod is captured, for the kubectl plugin's test; without a question, wait", Hidden: true,
		RunE: func(c *cobra.Command, _ []string) error {
			if question == "" {
				<-c.Context().Done()
				return nil
			}
			var q proof.Question
			if err := json.Unmarshal([]byte(question), &q); err != nil {
				return cli.Usagef("--question: %w", err)
			}
			a := proof.Answer{Trials: []proof.Trial{}}
			if err := p.prove(c.Context(), &a, q, outside); err != nil {
				a.Error = truncate.Text(err.Error(), proof.MaxDetail)
			}
			text, err := json.Marshal(a)
			if err != nil {
				return err
			}
			visible.To(p.Stdout).Printf("%s\n", text)
			return os.WriteFile(message, text, 0o644) //nolint:gosec // the kubelet reads it
		},
	}
	c.Flags().StringVar(&question, "question", "", "what to prove, as JSON")
	c.Flags().DurationVar(&outside, "outside", 0, "then wait as long for a connection from outside to arrive at the proxy's port")
	c.Flags().StringVar(&message, "message", "/dev/termination-log", "the file of the container's termination message")
	return c
}

// prove makes the trials of this process's user.
func (p Program) prove(ctx context.Context, a *proof.Answer, q proof.Question, outside time.Duration) error {
	addrs, err := podAddrs()
	if err != nil {
		return err
	}
	pod := judge.New(dialect.SetOf(p.Dialects...)).Pod(q.Pod, q.Namespace, nil)
	plan, err := pod.Plan(addrs, redirect.Kernel{})
	switch {
	case err != nil:
		return err
	case !pod.Selected() || pod.Mesh.Name != q.Dialect:
		return fmt.Errorf("the pod is none of %s: %s", q.Dialect, pod.Decision.Reason)
	}
	o := validate.Options{Redirect: plan.Redirect, ProbePort: q.ProbePort}
	if err := told(a, "", validate.Run, ctx, o); err != nil || outside == 0 {
		return err
	}
	o.Timeout = outside
	return told(a, " from outside", validate.FromOutside, ctx, o)
}

// families are the names of Kubernetes.
var families = map[ruleset.Family]string{ruleset.IPv4: string(corev1.IPv4Protocol), ruleset.IPv6: string(corev1.IPv6Protocol)}

// told adds what was tried. That nothing could be, or that something is missing, is no error.
func told(a *proof.Answer, how string, try func(context.Context, validate.Options) (validate.Report, error), ctx context.Context, o validate.Options) error { //nolint:revive // as try has it
	report, err := try(ctx, o)
	for _, s := range report.Steps {
		if s.Tried() {
			a.Trials = append(a.Trials, proof.Trial{
				Family: families[s.Family], What: s.Aspect + how, Works: s.Works(), Detail: truncate.Text(s.Detail, proof.MaxDetail),
			})
		}
	}
	if missing := (*validate.MissingError)(nil); errors.Is(err, validate.ErrNothingTested) || errors.As(err, &missing) {
		return nil
	}
	return err
}

// podAddrs returns the addresses of this process's network namespace that others reach it by.
func podAddrs() (addrs []netip.Addr, err error) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("list the pod's addresses: %w", err)
	}
	for _, a := range all {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().IsGlobalUnicast() {
			addrs = append(addrs, p.Addr().Unmap())
		}
	}
	return addrs, nil
}
