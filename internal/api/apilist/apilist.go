// Package apilist reads long lists of an API server page by page.
package apilist

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/pager"
)

// PageSize bounds what one list of the API server has. Its own clients ask for as many.
const PageSize = 500

// Each calls each with the objects of a list. It has two pages of them at most.
func Each[L, T runtime.Object](ctx context.Context, get func(context.Context, metav1.ListOptions) (L, error), o metav1.ListOptions, each func(T)) error {
	pages := pager.New(func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return nextPage(ctx, get, o) })
	pages.PageSize, pages.PageBufferSize = PageSize, 0
	return pages.EachListItem(ctx, o, func(object runtime.Object) error {
		each(object.(T))
		return nil
	})
}

// nextPage gets a page of a list. The API server forgets after a few minutes how a list was, and what is done with the pages may take
// longer; then the rest is that of the list as it is now.
func nextPage[L any](ctx context.Context, get func(context.Context, metav1.ListOptions) (L, error), o metav1.ListOptions) (L, error) {
	page, err := get(ctx, o)
	var refused apierrors.APIStatus
	if o.Continue == "" || !apierrors.IsResourceExpired(err) || !errors.As(err, &refused) || refused.Status().Continue == "" {
		return page, err
	}
	o.Continue = refused.Status().Continue
	return get(ctx, o)
}
