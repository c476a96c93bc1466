// Package nodepods knows the pods of one node and the namespaces that they are in. A [Watch] keeps them by watching the API
// server. It is a nodecontrol.Pods, answers the plugin's requests for pods, and can be the repair.Pods of a repair controller, so
// that an agent that does all of this has one watch.
//
// It needs the rights to list and watch pods, and to list and watch namespaces where these are wanted. It asks for the pods
// of its node only, in protobuf, and keeps of each what podkeep.Trim leaves. Of namespaces it asks for the metadata, with one
// watch for each namespace that has a pod here, and forgets those that have none left: neither the number of namespaces in
// the cluster nor what happens in others costs the node anything.
package nodepods
