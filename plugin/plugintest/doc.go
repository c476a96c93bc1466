// Package plugintest holds what a test of a CNI plugin, or of a mesh that is programmed by one, needs around it: pods in
// memory, an agent and a network namespace, with the failures that real ones show now and then.
//
//	pods := plugintest.NewPods(pod)
//	pods.Hook = func(_ context.Context, n int) error { return failures[n] }
//	program := plugin.Plugin{Dialects: dialects, OpenPods: pods.Open}
package plugintest
