package kubectlcmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/internal/api/apilist"
	"github.com/meshcni/meshcni/internal/api/rights"
	"github.com/meshcni/meshcni/internal/node/api"
	"github.com/meshcni/meshcni/nodeagent/agentapi"
)

// maxRights bounds the questions, of which an installation with the same settings on all nodes has some twenty.
const maxRights = 300

// nodeNameExtra is the key under which a token that is bound to a node names it; an authorizer may ask for it.
const nodeNameExtra = "authentication.kubernetes.io/node-name"

// wanted is one right of one account, as it is asked about.
type wanted struct {
	namespace, account, node string
	agentapi.Right
}

// user is the account's name among users.
func (w wanted) user() string { return "system:serviceaccount:" + w.namespace + ":" + w.account }

// rightsWanted gathers rights, each once.
type rightsWanted struct {
	all   []wanted
	known map[wanted]bool
	more  bool
}

// add adds what the account's programs on a node need. Empty accounts are the given one.
func (r *rightsWanted) add(namespace, account, node string, all []agentapi.Right) {
	if r.known == nil {
		r.known = map[wanted]bool{}
	}
	for _, right := range all {
		w := wanted{namespace: namespace, account: cmp.Or(right.Account, account), Right: right}
		key := w
		key.Right.Account, key.For, key.Attributes.FieldSelector, key.Attributes.LabelSelector = "", "", nil, nil
		switch {
		case r.known[key]:
			continue
		case len(r.all) == maxRights:
			r.more = true
			return
		}
		r.known[key] = true
		w.node = node
		r.all = append(r.all, w)
	}
}

// addTaint adds what the taint's controllers need, whose labels are the agents' but for the component. They are in the agents'
// namespace, where nobody but an administrator makes pods.
func (c *cluster) addTaint(ctx context.Context, r *rightsWanted) error {
	sets, err := c.daemonSets(ctx)
	selector := strings.Replace(c.finder.Selector, "app.kubernetes.io/component=node", "app.kubernetes.io/component=taint", 1)
	if err != nil || selector == c.finder.Selector { // the labels are somebody's own
		return err
	}
	seen := map[string]bool{}
	for _, set := range sets {
		if seen[set.Namespace] {
			continue
		}
		seen[set.Namespace] = true
		err := apilist.Each(ctx, c.client.CoreV1().Pods(set.Namespace).List, metav1.ListOptions{LabelSelector: selector}, func(pod *corev1.Pod) {
			if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed || len(pod.Spec.Containers) == 0 {
				return
			}
			flags := map[string]string{"--daemonset-name": c.Identity.Agent, "--lease-name": c.Identity.Program("taint")} // as the controller has them by default
			for _, arg := range pod.Spec.Containers[0].Args {
				if name, value, ok := strings.Cut(arg, "="); ok && flags[name] != "" {
					flags[name] = value
				}
			}
			r.add(pod.Namespace, accountOf(pod), "", rights.Taint(pod.Namespace, flags["--daemonset-name"], flags["--lease-name"]))
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// accountOf is the service account of a pod.
func accountOf(pod *corev1.Pod) string { return cmp.Or(pod.Spec.ServiceAccountName, "default") }

// rights asks the API server for each right whether the account has it. Rights that an account has and does not need are not looked for.
func (c *cluster) rights(ctx context.Context, f *findings, r rightsWanted) {
	unknown := 0
	for i, err := range each(askAtOnce, r.all, func(_ int, w wanted) error { return c.refuses(ctx, w) }) {
		switch w := r.all[i]; {
		case err == nil:
		case errors.Is(err, errRefused):
			f.add(codeAgentRights, levelError, w.user(), "may not "+api.Text(w.Attributes)+": "+w.For)
		default:
			if unknown++; unknown == 1 { // most often it is the same for all
				f.add(codeAgentRights, levelUnknown, "", "whether the agents' account has its rights cannot be asked: "+err.Error())
			}
		}
	}
	if r.more {
		f.add(codeAgentRights, levelUnknown, "", fmt.Sprintf("the agents need more than %d different rights, of which the rest was not asked about: their settings differ from node to node", maxRights))
	}
}

var errRefused = errors.New("refused")

// refuses asks about one right, for the node whose agent needs it; errRefused: the account does not have it.
func (c *cluster) refuses(ctx context.Context, w wanted) error {
	spec := authorizationv1.SubjectAccessReviewSpec{
		User: w.user(), Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + w.namespace, "system:authenticated"}, ResourceAttributes: &w.Attributes,
	}
	if w.node != "" {
		spec.Extra = map[string]authorizationv1.ExtraValue{nodeNameExtra: {w.node}}
	}
	review, err := c.client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{Spec: spec}, metav1.CreateOptions{})
	switch {
	case err != nil || review.Status.Allowed:
		return err
	case review.Status.EvaluationError != "":
		return fmt.Errorf("whether %s may %s is not known: %s", w.user(), api.Text(w.Attributes), review.Status.EvaluationError)
	}
	return errRefused
}
