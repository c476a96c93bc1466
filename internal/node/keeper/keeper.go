// Package keeper follows a node's pods for those who act on them, the policies: repair of pods with a proxy of their own, and internal/nodecontrol of
// those of the node's proxy. A [Keeper] has the one memory of each pod, hears of each change once, has lanes in which pods wait to be worked on, and
// has the budgets of what is done to them. It knows no mesh and no rule.
package keeper

import (
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/internal/node/budget"
	"github.com/meshcni/meshcni/internal/node/podid"
)

// Pods are the node's. A *nodepods.Watch has them.
type Pods interface {
	// ByUID returns the pod that the runtime knows by the UID, or whose own it is, or nil.
	ByUID(uid types.UID) *corev1.Pod
	// RuntimeUID returns the UID by which the runtime and the control groups know a pod: a static pod's mirror has another. It must not rest on what
	// the pod says of itself.
	RuntimeUID(pod *corev1.Pod) types.UID
	// Subscribe calls changed with the UID of each pod that is new, changed or gone, or whose namespace changed, until cancel is called. changed
	// must not block.
	Subscribe(changed func(types.UID)) (cancel func())
}

// Keeper keeps the pods of a node, by the UIDs by which the runtime knows them. Its methods are safe for concurrent use. Make one with [New].
type Keeper struct {
	*budget.Namespaces // of what is done to pods, by whomever

	pods Pods
	slow chan struct{} // holds one for the one slow pod that is worked on

	mu     sync.Mutex
	memory map[types.UID]*memory
	subs   map[int]func(types.UID, time.Duration)
	last   int
}

// memory is kept of a pod while it exists, or a policy has something of it.
type memory struct {
	looks budget.Changes // that its changes cause
	stay  stay
	parts map[string]any // a pointer to what each [Part] remembers, by its name
}

// New returns a keeper of the pods that has nothing of them yet. It lives as long as they do.
func New(pods Pods) *Keeper {
	return &Keeper{
		Namespaces: budget.ForNamespaces(budget.Default), pods: pods, slow: make(chan struct{}, 1),
		memory: map[types.UID]*memory{}, subs: map[int]func(types.UID, time.Duration){},
	}
}

// uid returns the UID by which the runtime knows a pod that somebody may call by the API server's. The caller holds mu.
func (k *Keeper) uid(uid types.UID) types.UID {
	if pod := k.pods.ByUID(uid); pod != nil {
		return k.pods.RuntimeUID(pod)
	}
	return uid
}

// of returns the memory of a pod, and makes it. The caller holds mu.
func (k *Keeper) of(uid types.UID) *memory {
	m := k.memory[uid]
	if m == nil {
		m = &memory{parts: map[string]any{}}
		k.memory[uid] = m
	}
	return m
}

// tidy forgets a pod that has ended or is gone, and of which no policy has anything. The caller holds mu.
func (k *Keeper) tidy(uid types.UID) {
	if m := k.memory[uid]; m != nil && len(m.parts) == 0 && gone(k.pods.ByUID(uid)) {
		delete(k.memory, uid)
	}
}

func gone(pod *corev1.Pod) bool { return pod == nil || podid.Ended(pod) }

// Subscribe calls changed with each pod that is new, changed or gone, and with the time that a look at it has to wait because it has changed too often
// of late, until cancel is called. One that is gone or has ended does not wait. changed must not block.
func (k *Keeper) Subscribe(changed func(uid types.UID, wait time.Duration)) (cancel func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.last++
	id := k.last
	k.subs[id] = changed
	if id == 1 {
		k.pods.Subscribe(k.changed)
	}
	return func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		delete(k.subs, id)
	}
}

// changed tells all policies of a pod.
func (k *Keeper) changed(uid types.UID) {
	now := time.Now()
	var wait time.Duration
	k.mu.Lock()
	if pod := k.pods.ByUID(uid); gone(pod) {
		k.tidy(k.uid(uid))
	} else {
		wait = k.of(k.pods.RuntimeUID(pod)).looks.Take(now)
	}
	tell := make([]func(types.UID, time.Duration), 0, len(k.subs))
	for _, s := range k.subs {
		tell = append(tell, s)
	}
	k.mu.Unlock()
	for _, s := range tell {
		s(uid, wait)
	}
}

// Part is one policy's memory of each pod: a T. Make one with [NewPart].
type Part[T any] struct {
	k    *Keeper
	name string
}

// NewPart returns the part of a policy that begins. What an earlier one of its name remembered is forgotten: it has ended.
func NewPart[T any](k *Keeper, name string) *Part[T] {
	p := &Part[T]{k, name}
	p.Drop(func(types.UID, T) bool { return true })
	return p
}

// Get returns what is remembered of a pod, or a zero T.
func (p *Part[T]) Get(uid types.UID) (t T) {
	p.k.mu.Lock()
	defer p.k.mu.Unlock()
	if m := p.k.memory[uid]; m != nil {
		if is, ok := m.parts[p.name]; ok {
			return *is.(*T)
		}
	}
	return t
}

// Change changes what is remembered of a pod, from a zero T if nothing is. change must not call the keeper.
func (p *Part[T]) Change(uid types.UID, change func(*T)) {
	p.k.mu.Lock()
	defer p.k.mu.Unlock()
	m := p.k.of(uid)
	is, ok := m.parts[p.name]
	if !ok {
		is = new(T)
		m.parts[p.name] = is
	}
	change(is.(*T))
}

// All returns what is remembered of each pod.
func (p *Part[T]) All() map[types.UID]T {
	p.k.mu.Lock()
	defer p.k.mu.Unlock()
	all := map[types.UID]T{}
	for uid, m := range p.k.memory {
		if is, ok := m.parts[p.name]; ok {
			all[uid] = *is.(*T)
		}
	}
	return all
}

// Drop forgets what is remembered of the pods that drop names, and that there was such a pod if it is gone. drop must not call the keeper.
func (p *Part[T]) Drop(drop func(types.UID, T) bool) {
	p.k.mu.Lock()
	defer p.k.mu.Unlock()
	for uid, m := range p.k.memory {
		if is, ok := m.parts[p.name]; ok && drop(uid, *is.(*T)) {
			delete(m.parts, p.name)
			p.k.tidy(uid)
		}
	}
}
