package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sync/errgroup"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Permission is one rule of a Role. An empty Namespace or Name means all.
type Permission authorizationv1.ResourceAttributes

// String returns, for example, "patch pods/status".
func (p Permission) String() string {
	s := p.Verb + " " + p.Resource
	for _, part := range [][2]string{{".", p.Group}, {"/", p.Subresource}, {" ", p.Name}, {" in namespace ", p.Namespace}} {
		if part[1] != "" {
			s += part[0] + part[1]
		}
	}
	return s
}

// Uses lists a controller's work besides watching pods and writing events.
type Uses struct {
	Label, Evict, Delete, Namespaces bool
}

// Permissions lists the permissions that the uses take.
func (u Uses) Permissions() []Permission {
	all := []Permission{
		{Verb: "list", Resource: "pods"}, {Verb: "watch", Resource: "pods"},
		{Verb: "create", Resource: "events"}, {Verb: "patch", Resource: "events"},
	}
	for _, more := range []struct {
		used bool
		Permission
	}{
		{u.Label, Permission{Verb: "patch", Resource: "pods", Subresource: "status"}},
		{u.Evict, Permission{Verb: "create", Resource: "pods", Subresource: "eviction"}},
		{u.Delete, Permission{Verb: "delete", Resource: "pods"}},
		{u.Namespaces, Permission{Verb: "get", Resource: "namespaces"}},
	} {
		if more.used {
			all = append(all, more.Permission)
		}
	}
	return all
}

// Missing asks the server which of the permissions it would refuse. An error means that the server could not be asked; it says about
// which permission, also where the server's answer says nothing. Of pods, it asks about those of the client's node, which are all
// that it reads: an authorizer may bind reads to the node.
func (c *Client) Missing(ctx context.Context, wanted []Permission) (missing []Permission, err error) {
	denied := make([]bool, len(wanted))
	ask := func(ctx context.Context, i int) error {
		p := wanted[i]
		attributes := authorizationv1.ResourceAttributes(p)
		if p.Resource == "pods" && (p.Verb == "list" || p.Verb == "watch") {
			attributes.FieldSelector = &authorizationv1.FieldSelectorAttributes{Requirements: []metav1.FieldSelectorRequirement{
				{Key: nodeField, Operator: metav1.FieldSelectorOpIn, Values: []string{c.node}},
			}}
		}
		review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &attributes}}
		if err := c.authorization.Post().Resource("selfsubjectaccessreviews").Body(review).Do(ctx).Into(review); err != nil {
			return fmt.Errorf("ask whether it is permitted to %s: %w", p, spoken(err))
		}
		denied[i] = !review.Status.Allowed
		return nil
	}
	for i := range wanted[:min(1, len(wanted))] { // if this fails, so would the rest, which are asked side by side
		if err := ask(ctx, i); err != nil {
			return nil, err
		}
	}
	group, grouped := errgroup.WithContext(ctx)
	for i := 1; i < len(wanted); i++ {
		group.Go(func() error { return ask(grouped, i) })
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	for i, p := range wanted {
		if denied[i] {
			missing = append(missing, p)
		}
	}
	return missing, nil
}

// spoken returns the error, with what is known of it if it has no text: the answer of a server, or of a proxy before it, may have none.
func spoken(err error) error {
	var answer apierrors.APIStatus
	if strings.TrimSpace(err.Error()) != "" || !errors.As(err, &answer) {
		return err
	}
	s := answer.Status()
	return fmt.Errorf("the server answers %d (%s) and does not say why%w", s.Code, cmp.Or(s.Reason, "no reason"), err)
}
