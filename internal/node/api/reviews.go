package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sync/errgroup"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// MayCreateTokens allows Token.
var MayCreateTokens = Right{Verb: "create", Resource: "serviceaccounts", Subresource: "token"}

// Token requests a token of a service account.
func (c *Client) Token(ctx context.Context, namespace, account string, spec authenticationv1.TokenRequestSpec) (string, error) {
	out := &authenticationv1.TokenRequest{}
	err := c.core.Post().Namespace(namespace).Resource("serviceaccounts").Name(account).SubResource("token").
		Body(&authenticationv1.TokenRequest{Spec: spec}).Do(ctx).Into(out)
	return out.Status.Token, err
}

// WhoAmI says whose the client's token is. Everybody has the right to ask, with Kubernetes' own roles.
func (c *Client) WhoAmI(ctx context.Context) (authenticationv1.UserInfo, error) {
	who := &authenticationv1.SelfSubjectReview{}
	err := c.authentication.Post().Resource("selfsubjectreviews").Body(who).Do(ctx).Into(who)
	return who.Status.UserInfo, err
}

// Missing asks the server which of the rights it would refuse. An error means that the server could not be asked; it says about which right,
// also where the server's answer says nothing. To list and watch pods, it asks about those of the node, which are all that the client reads: an
// authorizer may bind reads to the node. Everybody has the right to ask, with Kubernetes' own roles.
func (c *Client) Missing(ctx context.Context, wanted []Right) (missing []Right, err error) {
	denied := make([]bool, len(wanted))
	ask := func(ctx context.Context, i int) error {
		r := wanted[i]
		if r.Resource == "pods" && (r.Verb == "list" || r.Verb == "watch") {
			r.FieldSelector = OnNode(c.node)
		}
		review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &r}}
		if err := c.authorization.Post().Resource("selfsubjectaccessreviews").Body(review).Do(ctx).Into(review); err != nil {
			return fmt.Errorf("ask whether it is permitted to %s: %w", Text(r), spoken(err))
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
	for i, r := range wanted {
		if denied[i] {
			missing = append(missing, r)
		}
	}
	return missing, nil
}

// OnNode selects the pods of a node, for a review of a right to list or watch pods.
func OnNode(node string) *authorizationv1.FieldSelectorAttributes {
	return &authorizationv1.FieldSelectorAttributes{Requirements: []metav1.FieldSelectorRequirement{
		{Key: nodeField, Operator: metav1.FieldSelectorOpIn, Values: []string{node}},
	}}
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
