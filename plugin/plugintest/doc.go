// Package plugintest holds what a test of a CNI plugin, or of a mesh that is programmed by one, needs around it: an API
// server with the pods that the test says, and with the failures that a real one shows now and then.
//
//	server := plugintest.NewAPIServer(t)
//	server.SetPod(pod)
//	server.Handle(plugintest.First(2, plugintest.Answer(http.StatusTooManyRequests)))
//	kubeconfig, err := server.WriteKubeconfig(t.TempDir())
package plugintest
